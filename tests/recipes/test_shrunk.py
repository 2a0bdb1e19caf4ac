"""The table of sizes replaces sizes only: each replaced key is one of the table or an expression of the recipe's own sizes,
and the shrunk recipe keeps the recipe's rules."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import LIMITS, alike, differences, faults
from memory import resident_bytes
from pins import on
from records import Records, _acts, _switches, changes_today, locked_tips, settings_of
from releases import NEWEST, OLDEST, RELEASES, OfRelease
from run import arguments, as_expected, beside, good
from seen import by_changes, same_again, updates_of
from shrunk import REPO, TABLE, Beside, recipes, replaced, shipped, shrunk, smaller
from table import sizes_page
from variants import DYNAMIC, KINDS, SWITCHES, Variant, changed_code, on_in, variants
from watch import same_prompts
from watch_v1 import _groups

from patchctl.training.recipes.check import features_and_switches
from patchctl.training.recipes.resolve import bare, resolve

KNOWN = recipes()
KEYS = shipped(KNOWN)
OF_RELEASE = {name: recipes(name) for name in RELEASES}
# Those of every release, for what holds on each.
of_every_release = pytest.mark.parametrize(
    ("release", "key"),
    [(name, key) for name, known in OF_RELEASE.items() for key in shipped(known)],
    ids=lambda one: one if isinstance(one, str) else "/".join(one),
)


@of_every_release
def test_nothing_but_sizes_is_replaced(release: str, key: tuple[str, str]) -> None:
    known = OF_RELEASE[release]
    one = shrunk(known, key, {})
    changed = replaced(known, one)
    computed = {name for name, value in one.recipe.overrides.items() if value.written.startswith("= ")}
    left_out = {name for name in one.recipe.overrides if bare(name) in TABLE["left_out"]}
    assert all(changed[name][1] == "" for name in left_out)
    assert not TABLE["engines_apart"].keys() - TABLE["run"].keys()
    allowed = {*left_out, *one.recipe.sizes, *computed, *TABLE["run"]} | {
        name for name in one.recipe.overrides if bare(name) in TABLE["amounts"]
    }
    assert set(changed) <= allowed


@cache
def switches_of(release: str, profile: str) -> set[str]:
    return {switch.name for switch in features_and_switches(on(release), profile)[1]}


@of_every_release
def test_no_switch_of_a_feature_is_replaced(release: str, key: tuple[str, str]) -> None:
    switches = switches_of(release, key[0])
    amounts = {"actor_rollout_ref.rollout.data_parallel_size"}  # a switch by its number, which follows the sizes
    known = OF_RELEASE[release]
    changed = {bare(name) for name in replaced(known, shrunk(known, key, {}))}
    lengths = {name for name in TABLE["amounts"] if name in switches}
    assert changed & switches <= amounts | lengths
    assert lengths <= {
        "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.moe_chunk_tokens",
        "actor_rollout_ref.rollout.cudagraph_capture_sizes",
    }


def test_what_goes_with_a_key_is_set_beside_it_alone() -> None:
    std = "+actor_rollout_ref.actor.megatron.override_transformer_config.init_method_std"
    found = [key for key in KEYS if std in shrunk(KNOWN, key, {}).run(KNOWN).overrides]
    assert found == [("qwen3-235b", "grpo-random-init")]


@of_every_release
def test_ranks_are_at_most_eight(release: str, key: tuple[str, str]) -> None:
    one = shrunk(OF_RELEASE[release], key, {})
    assert 1 <= one.ranks <= TABLE["most_ranks"]


@pytest.mark.parametrize("release", RELEASES)
def test_every_recipe_but_the_demos_is_run(release: str) -> None:
    known = OF_RELEASE[release]
    assert shipped(known)
    assert {key[0] for key in known.runnable()} - {key[0] for key in shipped(known)} <= {"demo"}


def test_the_table_says_why() -> None:
    entries = [one for part in ("sizes", "amounts", "run", "engines_apart") for one in TABLE[part].values()]
    assert all(
        one.keys() - {"where"} == {"value", "why"} for one in entries
    )  # a comma in unquoted YAML makes a further key


def test_the_page_says_what_the_table_does() -> None:
    assert (REPO / "docs/evidence/recipes-sizes.md").read_text(encoding="utf-8") == sizes_page()


@pytest.mark.parametrize("of", RELEASES.values(), ids=RELEASES)
def test_the_page_says_what_the_records_do(of: OfRelease) -> None:
    """Of the patches of today: `python tests/recipes/run.py --pages` writes it anew where one has changed."""
    folder = REPO / "docs/evidence" / of.page
    if not folder.is_dir():
        assert not folder.with_name(f"{of.page}.md").exists()
        pytest.skip(f"no run of {of.name} is on record")
    assert (
        folder.with_name(f"{of.page}.md").read_text(encoding="utf-8")
        == Records(OF_RELEASE[of.name], folder, of=of).page()
    )


@pytest.mark.parametrize(
    "words",
    [
        f"--release {OLDEST.name} --compare nothing",
        f"--release {NEWEST.name} --only qwen2.5-1.5b/grpo --steps 3",
        "--only a/b --with A=1 --records kept",
        "--with A=1",
        "--release 2099.12",
    ],
)
def test_what_a_run_cannot_do_is_refused_before_anything_starts(words: str) -> None:
    with pytest.raises(SystemExit) as refused:
        arguments(["--trees", "nowhere", *words.split()])
    assert refused.value.code == 2


def test_what_is_given_beside_a_recipe_is_an_override_or_a_variable() -> None:
    asked = arguments(
        ["--trees", "nowhere", "--only", "a/b", "--model", "qwen3-235b", "--with", "+a.b={c:1}", "D=true"]
    )
    assert beside(asked) == Beside({"+a.b": "{c:1}"}, {"D": "true"}, "qwen3-235b")


def test_sizes_of_a_release_make_a_recipe_smaller_only() -> None:
    def sizes(*key: str) -> dict[str, str]:
        return smaller(resolve(OF_RELEASE[NEWEST.name], *key), NEWEST.sizes, {})

    assert sizes("qwen2.5-1.5b", "grpo") == {}
    one = shrunk(OF_RELEASE[NEWEST.name], ("qwen3-235b", "grpo"), {}, sizes("qwen3-235b", "grpo"))
    assert (one.ranks, one.given.sizes["tp"], one.given.sizes["pp"]) == (2, "2", "1")
    assert not [key for key in one.run(OF_RELEASE[NEWEST.name]).overrides if "pipeline_stage" in key]


def test_engines_apart_have_devices_beside_the_ranks() -> None:
    known, key = OF_RELEASE[NEWEST.name], ("qwen3-8b", "grpo-delta")
    sizes = smaller(resolve(known, *key), NEWEST.sizes_of("/".join(key)), {})
    one, beside_it = shrunk(known, key, {}, sizes), shrunk(known, ("qwen3-8b", "grpo"), {}, sizes)
    assert (one.ranks, one.devices(known), beside_it.devices(known)) == (2, 4, 2)
    cpus = [run.run(known).override("ray_kwargs.ray_init.num_cpus") for run in (one, beside_it)]
    assert [setting and setting.value for setting in cpus] == ["24", "12"]
    assert one.run(known).override("trainer.v1.separate_async.parameter_sync_step").value == "1"  # type: ignore[union-attr]


def test_updates_by_changes_are_all_but_the_first(tmp_path: Path) -> None:
    def by(*changed: str) -> bool:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for update, rank in ((1, 0), (1, 1), (2, 0), (2, 1)):
            (folder / f"weights.{update}.{rank}.safetensors").touch()
        for name in changed:
            (folder / f"changed.{name}.json").touch()
        return by_changes(folder, [1, 2])

    assert by("2.0", "2.1")
    assert not by() and not by("2.0") and not by("1.0", "1.1", "2.0", "2.1")


def test_an_update_that_was_to_send_changes_and_did_not_is_not_good() -> None:
    update = {"whole": True, "ranks agree": True, "changed": True, "rounded": 0.0}
    found = {"steps": 2, "answers": [{"answers": 4, "different": 4}], "resumed": True, "update": update}
    assert good(found) and good(found | {"update": update | {"by changes": True}})
    assert not good(found | {"update": update | {"by changes": False}})
    assert not good(found | {"update": None})


@pytest.mark.parametrize("of", RELEASES.values(), ids=RELEASES)
def test_what_is_known_to_stop_was_seen_to(of: OfRelease) -> None:
    """No reason stands for a recipe that has run, or that has stopped otherwise."""
    found = Records(OF_RELEASE[of.name], REPO / "docs/evidence" / of.page, of=of).found
    for title, one in of.known_stops.items():
        assert not good(found[title])
        assert of.known_stop(title, found[title]["why"]) == one["why"]


def test_only_the_stop_that_is_known_is_as_expected() -> None:
    of, stopped = NEWEST, {"steps": 0, "update": None, "answers": [], "resumed": None}
    known = replace(of, known_stops={"a/b": {"stops": "TypeError: one", "why": "it is so"}})
    assert as_expected(known, "a/b", stopped | {"why": "TypeError: one thing"})
    assert not as_expected(known, "a/b", stopped | {"why": "TypeError: another"})
    assert not as_expected(known, "a/c", stopped | {"why": "TypeError: one thing"})


def test_a_record_of_other_patches_or_settings_is_told(tmp_path: Path) -> None:
    key = ("qwen3-8b", "grpo")
    settings = settings_of(shrunk(KNOWN, key, {}), KNOWN)
    tip = min(locked_tips()["verl/v0.6.0"])
    found = {"composed": True, "steps": 2, "answers": [], "update": None, "resumed": True, "why": "", "compared": {}}
    records = Records(KNOWN, tmp_path)
    for state, told in (
        ({"trees": {"verl": tip}, "settings": settings}, False),
        ({"trees": {"verl": "0" * 40}, "settings": settings}, True),
        ({"trees": {"verl": tip}, "settings": "others"}, True),
    ):
        records.found = {"/".join(key): found | {"state": state}}
        assert ("| qwen3-8b/grpo † |" in records.page()) == told
        assert "Changed since then" not in records.page()


def test_what_has_changed_since_a_run_is_named(tmp_path: Path) -> None:
    """A patch that is another one, one that has come and one that has gone; a later Records reads what was noted."""
    key, stack = ("qwen3-8b", "grpo"), "verl/v0.6.0"
    tip, today = min(locked_tips()[stack]), changes_today()[stack]
    settings = settings_of(shrunk(KNOWN, key, {}), KNOWN)
    found = {"composed": True, "steps": 2, "answers": [], "update": None, "resumed": True, "why": "", "compared": {}}
    Records(KNOWN, tmp_path).keep("/".join(key), found | {"state": {"trees": {"verl": tip}, "settings": settings}})
    noted = {"stack": stack, "tree": locked_tips()[stack][tip], "patches": today}
    assert Records(KNOWN, tmp_path).made_of == {tip: noted}

    records, (other, gone, *_) = Records(KNOWN, tmp_path), today
    was = {**today, other: "0" * 64, "of_old": "0" * 64}
    del was[gone]
    records.made_of["0" * 40] = {"stack": stack, "tree": "", "patches": was}
    records.found["/".join(key)]["state"]["trees"]["verl"] = "0" * 40
    named = ", ".join(sorted(f"{stack}/{name}" for name in (other, gone, "of_old")))
    assert f"Changed since then:\n  {named}." in records.page()
    needed = {other, gone} & set(shrunk(KNOWN, key, {}).run(KNOWN).needs)
    assert needed and last_cell(records, key) == ", ".join(sorted(needed))
    records.found["/".join(key)]["state"]["settings"] = "others"
    assert last_cell(records, key) == ", ".join(["its settings", *sorted(needed)])
    records.found["/".join(key)]["state"]["settings"] = settings

    records.made_of["0" * 40]["tree"] = noted["tree"]  # other words in a header: another tip of what ran
    assert "| qwen3-8b/grpo |" in records.page() and "Changed since" not in records.page()


def test_a_patch_acts_where_its_switch_is_on_or_it_has_none() -> None:
    key = ("qwen3-8b", "grpo")
    stack = f"verl/{on(NEWEST.name).release(NEWEST.name).stacks['verl']}"
    tip = min(locked_tips()[stack])
    switches = _switches(NEWEST.name, key[0])
    backend = "actor_rollout_ref.rollout.checkpoint_engine.backend"
    ranks = "actor_rollout_ref.rollout.data_parallel_size"
    assert not _acts(f"{stack}/delta_weight_update", {"trainer.save_freq": "1"}, switches)
    assert _acts(f"{stack}/delta_weight_update", {backend: "delta"}, switches)
    assert _acts(f"{stack}/rollout_routing_replay", {}, switches)
    assert _acts(f"{stack}/one_that_has_gone", {}, switches)
    of_ranks = [_acts("vllm/any/data_parallel_seeds", said, {}) for said in ({}, {ranks: "1"}, {ranks: "2"})]
    assert of_ranks == [False, False, True]
    known = OF_RELEASE[NEWEST.name]
    records, run = Records(known, Path("nowhere"), of=NEWEST), shrunk(known, key, {})
    for changed, marked in (("delta_weight_update", False), ("rollout_routing_replay", True)):
        made = {"stack": stack, "tree": "", "patches": {**changes_today()[stack], changed: "0" * 64}}
        records.made_of = {"0" * 40: made}  # type: ignore[dict-item]
        assert records._ran_on_others(run, {"verl": "0" * 40}) == marked
    assert records._ran_on_others(run, {"verl": "1" * 40}) and not records._ran_on_others(run, {"verl": tip})


def last_cell(records: Records, key: tuple[str, str]) -> str:
    (row,) = (line for line in records.page().splitlines() if line.startswith(f"| {'/'.join(key)} "))
    return row.rpartition("|")[0].rpartition("|")[2].strip()


@of_every_release
def test_the_table_of_switches_has_every_one_that_is_on(release: str, key: tuple[str, str]) -> None:
    run = shrunk(OF_RELEASE[release], key, {}).run(OF_RELEASE[release])
    known = {known for switch in SWITCHES.values() for known in switch["keys"]}
    settings = {bare(key) for key in {**run.overrides, **run.environment}}
    switches = switches_of(release, key[0])
    on = {key for switch in switches for key in settings if f".{switch}." in f".{key}."}
    assert on <= known
    assert on_in(run) or not on


def test_the_table_of_switches_names_features() -> None:
    assert [name for name in SWITCHES if not any(changed_code(name, release) for release in RELEASES)] == []
    wanted = {other for switch in SWITCHES.values() for other in switch.get("wants", [])}
    assert wanted <= SWITCHES.keys()
    assert all(
        "stays" in switch or {switch["training"], switch["engine"]} <= {"equal", "close"}
        for switch in SWITCHES.values()
    )


@pytest.mark.heavy("resolves every variant of every recipe")
def test_a_variant_has_off_what_it_says_and_nothing_else() -> None:
    tried = list(variants(KNOWN, KEYS, KINDS))
    assert len(tried) > 3 * len(KEYS)
    for key, variant in tried:
        on = on_in(shrunk(KNOWN, key, {}).run(KNOWN))
        made = variant.made(KNOWN, key, {}, {})
        # On one rank a computed number of engines is 1, which is off.
        assert on_in(made.run(KNOWN)) == on - variant.off
        fewest = 2 if "layout" in on else 1  # a mixture of experts
        assert made.ranks == (fewest if variant.one_rank else shrunk(KNOWN, key, {}).ranks)
        one_by_one = (dynamic := made.run(KNOWN).override(DYNAMIC)) is not None and dynamic.value == "False"
        assert one_by_one or not (variant.one_rank or "hybrid" in variant.off)
        assert all(set(SWITCHES[name].get("wants", [])) <= on - variant.off for name in on - variant.off)


@pytest.mark.heavy("resolves every pair of switches")
def test_each_pair_that_meets_is_tried_once() -> None:
    pairs = [variant.name for _, variant in variants(KNOWN, KEYS, ["pairs"])]
    assert "only-log_prob-spread" in pairs  # both patch the trainer's fit
    assert "only-speculation-threshold" in pairs
    assert not [name for name in pairs if name in ("only-hccl-progress", "only-layout-log_prob")]


def test_first_weights_that_depend_on_the_number_of_ranks_are_not_compared_on_one() -> None:
    tried = {"/".join(key) for key, _ in variants(KNOWN, KEYS, ["one-rank"])}
    assert {"/".join(key) for key in KEYS} - tried == {"qwen2.5-1.5b/grpo", "qwen3-235b/grpo-random-init"}


def test_answers_are_given_prompt_by_prompt() -> None:
    assert same_prompts([[1], [1], [2], [2]], [[2], [1], [2], [1]]) == [1, 3, 0, 2]
    with pytest.raises(KeyError):
        same_prompts([[3]], [[1]])
    with pytest.raises(IndexError):
        same_prompts([[1], [1]], [[1]])


def test_answers_are_given_group_by_group_where_a_queue_has_them() -> None:
    """Prompts have ids of their own in each run."""
    assert _groups(["f3_0_0", "a1_0_0", "f3_1_0"]) == [0, 1, 0]
    other, own = _groups(["x_0_0", "x_1_0", "y_0_0"]), _groups(["b_0_0", "a_0_0", "b_1_0"])
    assert same_prompts([[n] for n in other], [[n] for n in own]) == [0, 2, 1]


STEP = {
    "actor/pg_loss": 0.5,
    "actor/grad_norm": 2.0,
    "critic/score/mean": 0.25,
    "checkpoint_engine/payload_mbytes": 1.7,
}


def found_with(**changes: float) -> dict[str, object]:
    other = {name: changes.get(name.rpartition("/")[2], value) for name, value in STEP.items()}
    if "mean" in changes:
        other["critic/score/mean"] = changes["mean"]
    same = other == STEP
    found = {"weights": same, "metrics equal": same, "tokens": same, "rounded": 0.0, "direction": 0.99}
    return found | differences({"1": STEP}, {"1": other})


def test_what_differs_is_told_by_what_was_promised() -> None:
    equal, close = Variant("off", frozenset({"spread"})), Variant("off", frozenset({"hybrid"}))
    assert faults(found_with(), equal) == faults(found_with(), close) == []
    assert faults(found_with(pg_loss=0.501), equal) == ["weights", "metrics equal", "tokens"]
    assert faults(found_with(pg_loss=0.501, payload_mbytes=1.8), close) == []  # what an update sends is no loss
    assert faults(found_with(pg_loss=0.6, grad_norm=2.5), close) == ["loss", "grad_norm"]
    assert faults(found_with() | {"direction": None, "rounded": 1.0}, close) == ["direction", "behind"]
    assert faults(found_with(mean=0.5), close) == ["other answers were scored"]
    assert LIMITS["loss"] < 0.1


def test_what_is_computed_elsewhere_is_held_to_a_rounding() -> None:
    """skip_old_log_prob's entropy is a mean in float32; that of the pass that it leaves out is one in bf16."""
    one, off = {"1": {"actor/entropy": 5.9199, "actor/pg_loss": 0.5}}, Variant("off", frozenset({"log_prob"}))
    assert alike(one, {"1": {"actor/entropy": 5.9375, "actor/pg_loss": 0.5}}, off.elsewhere)
    assert not alike(one, {"1": {"actor/entropy": 5.9375, "actor/pg_loss": 0.5}}, Variant("off").elsewhere)
    assert not alike(one, {"1": {"actor/entropy": 6.0, "actor/pg_loss": 0.5}}, off.elsewhere)
    assert not alike(one, {"1": {"actor/entropy": 5.9375, "actor/pg_loss": 0.501}}, off.elsewhere)
    assert not alike(one, {"1": {"actor/pg_loss": 0.5}}, off.elsewhere)


def test_memory_is_counted_over_children_and_a_session(tmp_path: Path) -> None:
    def process(pid: int, parent: int, session: int, pages: int) -> None:
        fields = ["S", str(parent), "0", str(session), *["0"] * 17, str(pages)]
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a b) c) {' '.join(fields)}\n")

    process(10, 1, 10, 1)
    process(11, 10, 11, 10)  # a child with a session of its own
    process(12, 11, 11, 100)
    process(13, 1, 10, 1000)  # its parent is gone
    process(14, 1, 14, 10000)
    assert resident_bytes(10, tmp_path) == 1111 * os.sysconf("SC_PAGE_SIZE")


def test_updates_with_the_same_weights_count_once(tmp_path: Path) -> None:
    def run(name: str, *weights: str) -> Path:
        (tmp_path / name).mkdir()
        for update, content in enumerate(weights, 1):
            (tmp_path / name / f"tokens.{update}.0.json").write_text(content)
            for rank in (0, 1):
                (tmp_path / name / f"weights.{update}.{rank}.safetensors").write_text(content)
        return tmp_path / name

    first = run("first", "a", "a", "b", "c")
    assert updates_of(first) == [1, 3, 4]
    assert same_again(first, 3, run("same", "b", "d"))
    assert not same_again(first, 3, run("other", "a", "b"))
    assert not same_again(first, 3, run("nothing"))
