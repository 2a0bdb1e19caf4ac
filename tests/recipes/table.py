"""docs/evidence/recipes-RELEASE.md: what a run of tests/recipes/run.py found, a row a recipe, a row a comparison;
docs/evidence/recipes-sizes.md: what the shrinking replaces, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compare import LIMITS
from releases import OLDEST, OfRelease
from seen import BEHIND, SEEN, TIE
from shrunk import TABLE

HEAD = """\
# Recipes{on_release}, run

Every shipped recipe, shrunk (`tests/recipes/sizes.yaml`), through verl's own entry module on CPUs: Ray workers, gloo, the
recipe's trainer and its engine, on the patched trees with the stand-ins of `standins/`. What shrinking replaces, and why, is in
[recipes-sizes.md](recipes-sizes.md). Written by `make test-recipes{release}`, after each run.

- **composed**: the entry module took the overrides and started its task runner.
- **two steps**: generation, reward, reference, update and checkpoint, twice.
- **answers**: how many of a step's are different, prompts counted, both steps; replicas that draw alike show here.
- **update seen**: after each update the engine holds the whole model, answers greedily, and with other tokens than before; the
  tokens are Hugging Face's with the same weights, or the engine's token is at most so many logits below the best (bf16).
- **resumed**: begun again from the checkpoint of the first step, the engine is given the very weights that it was given then.
- **seconds** are of the first of the two runs, its start included, on two cores with other work beside it (**load**: of the last five
  minutes); **GiB**: the most that its processes took together, pages that they share counted in each.
- **†**: run on other patches, or with other settings, than the distribution has today: {older}. Patches that the
  run leaves off, or gives nothing to do, do not count: there they change nothing, of which each has tests. Stand-ins may have
  changed in any row. The records, with the tips of the trees, are in [{folder}]({folder}/).{since}
- **changed since**: of the patches that this recipe `needs`, those that change other lines today.

| recipe | ranks | composed | two steps | answers | update seen | resumed | off | one rank | seconds | load | GiB | where it stops | changed since |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""

COMPARED = """
## Compared

Each row is a run of its own beside the recipe's, in which training is given the recipe's answers, prompt by prompt. **Equal**: both
steps' losses, gradient norms and scores, and all weights that the engine is given, are the very same; so is what it answers
greedily, where `tests/recipes/switches.yaml` does not say `close`; the entropy, which another pass computes with skip_old_log_prob, is
held to a rounding to bf16. **Close**, of the first step, which begins with the same weights:
losses differ by at most {loss}, the gradient norm by at most {grad_norm:.0%}, the cosine between what the two steps make of the weights
is at least {direction}, and the engine's greedy tokens are Hugging Face's with its weights, or at most {behind} logits below the best.
An engine with experts may be further below where two of them are nearly as good as each other, since rounding chooses there: it is
held to the limit with such choices of Hugging Face's router turned round, named by how many logits they are apart, at most {tie}
(`tests/recipes/ties.py`, which says why).

- **off**: every switch of a feature off that can be off; **without X**, that one and what needs it; **only X Y**, all but these two.
- **one rank** is held against a run on the recipe's ranks with micro-batches of one answer, as it has them itself: a loss is the average of
  its micro-batches', and depends on which answers share one; where it is one over all of a step (verl 0.9 and newer), against the
  recipe's own. Hybrid data parallelism, which chooses them itself, is held in its own
  micro-batches against runs with one answer in each. Recipes with experts have two ranks there: MindSpeed's overlapped exchange
  fails on one. A recipe that begins with random weights is not run there: which they are depends on the number of ranks.

| recipe | run | ranks | held to | held | losses | gradient norm | cosine | engine | seconds | GiB | where it stops |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""

FOUND = """
## What these runs found at the seams

| with what | what happened | mended by |
|---|---|---|
| dense engines that sleep, vllm-ascend's default of VLLM_ASCEND_ENABLE_NZ | `FRACTAL_NZ mode is enabled` at the first generation | the variable in \
`shared/npu`, rule `weights-not-in-nz` |
| MindSpeed's swap_optimizer and verl's checkpoints | `out of bounds for storage of size 0` at the first checkpoint; read in the code and shown \
by the patch's test: a step after a load goes on with the old count of steps | patch \
[swap_optimizer_state](../patches/mindspeed/f6688c61/swap_optimizer_state.md) |
| data_rebalance and two replicas or more | half of a group's samples were the other half again: replicas began with one random state | patch \
[data_rebalance_seeds](../patches/verl/v0.6.0/data_rebalance_seeds.md); column answers, rule `data-rebalance-seeds` |
| DeepSeek-V3's experts' bias and a resumed run | the engine was given the bias in bf16, in float32 before | patch \
[expert_bias_float32](../patches/megatron-lm/core_v0.12.1/expert_bias_float32.md) |
| ep_alltoallv_reshard and param_offload | `out of bounds for storage of size 0` when the workers are made | \
[ep_alltoallv_reshard](../patches/verl/v0.6.0/ep_alltoallv_reshard.md) records shapes only |
| MindSpeed's all-to-all overlap and one expert rank | `too many values to unpack` in the first forward pass: async_alltoall_with_backward \
returns one value | rule `overlap-expert-ranks` |
"""


KNOWN = """
## Known to stop

What `tests/recipes/known.yaml` lists, and no other stop, leaves the exit status at 0.

| recipe | with | why it is so |
|---|---|---|
"""

SIZES_HEAD = """\
# What shrinking a recipe replaces

For the runs in `recipes-RELEASE.md`; made of `tests/recipes/sizes.yaml` by `make test-recipes`. Nothing else of a recipe is
replaced, and no switch of a feature (`tests/recipes/test_shrunk.py`); what is computed from sizes follows them.

Parallel sizes ({parallel}) become 2 where they were more.
A run has as many ranks as they make, times two for data parallelism where that is at most {most}.
"""


def page(
    results: Mapping[str, Mapping[str, Any]],
    titles: Sequence[str],
    older: Mapping[tuple[str, str], Sequence[str]],
    since: Sequence[str],
    of: OfRelease = OLDEST,
) -> str:
    """`older` are the runs, as (title, variant), that are not of today's patches and recipes, with what has changed of what the
    recipe needs; the variant is "" for a recipe's own.
    `since` names the patches that have changed, come or gone after the oldest of them."""
    changed = f" Changed since then:\n  {', '.join(since)}." if since else ""
    other = {"on_release": f" of {of.name}", "release": f" RELEASE={of.name}"}
    runs = [(title, name) for title, found in results.items() for name in ("", *found.get("compared", {}))]
    share = f"{sum(run in older for run in runs)} of {len(runs)} runs"
    text = HEAD.format(since=changed, folder=of.page, older=share, **other) + "".join(
        _row(title, results.get(title), older.get((title, ""))) for title in titles
    )
    rows = [
        _compared_row(title, name, found, (title, name) in older)
        for title in titles
        for name, found in results.get(title, {}).get("compared", {}).items()
        if name != "one-by-one"
    ]
    if rows:
        text += COMPARED.format(**LIMITS, behind=BEHIND, tie=TIE) + "".join(rows)
    return text + (FOUND if of.looks_closer else _known(of))


def _known(of: OfRelease) -> str:
    """The recipes that known.yaml says to stop."""
    rows = [f"| {title} | `{one['stops']}` | {one['why'].strip()} |\n" for title, one in of.known_stops.items()]
    return KNOWN + "".join(rows) if rows else ""


def _row(title: str, found: Mapping[str, Any] | None, changed: Sequence[str] | None) -> str:
    if found is None:
        return f"| {title} | | not run | | | | | | | | | | | |\n"
    steps = "yes" if found["steps"] == 2 else f"no ({found['steps']})"
    other = ", ".join(f"{name} {value}" for name, value in found.get("other sizes", {}).items())
    beside = found.get("compared", {})
    cells = [
        f"{title}{' †' if changed is not None else ''}",
        f"{found.get('ranks', '')}{f' ({other})' if other else ''}",
        _yes(found["composed"]),
        steps,
        ", ".join(f"{one['different']} of {one['answers']}" for one in found["answers"]),
        _update(found["update"]),
        _yes(found["resumed"]),
        *(_held(beside.get(name)) for name in ("off", "one-rank")),
        *(str(found.get(name, "")) for name in ("seconds", "load")),
        _gib(found.get("peak")),
        found["why"].replace("|", "\\|"),
        ", ".join(changed or ()),
    ]
    return f"| {' | '.join(cells)} |\n"


def _compared_row(title: str, name: str, found: Mapping[str, Any], older: bool) -> str:
    promise = found["held to"]
    cells = [
        f"{title}{' †' if older else ''}",
        name.replace("-", " "),
        str(found["ranks"]),
        promise["training"],
        _held(found),
        *(_number(found.get(name)) for name in ("loss", "grad_norm", "direction")),
        "" if "tokens" not in found else "same tokens" if found["tokens"] else _behind(found),
        str(found["seconds"]),
        _gib(found["peak"]),
        (found["why"] or ", ".join(found.get("faults", []))).replace("|", "\\|"),
    ]
    return f"| {' | '.join(cells)} |\n"


def _held(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    how = "equal" if found.get("weights") and found.get("metrics equal") else "close"
    return how if found["held"] else "**no**"


def _number(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.4g}"


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**30:.1f}"


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _update(found: Mapping[str, Any] | None) -> str:
    if not found:
        return ""
    faults = [name for name in SEEN if not found.get(name, True)]
    if faults:
        return f"no ({', '.join(faults)})"
    how = "yes, by changes" if found.get("by changes") else "yes"
    return how if found["as Hugging Face"] else f"{how}, {_behind(found)}"


def _behind(found: Mapping[str, Any]) -> str:
    turned = ", ".join(f"{margin:.2g}" for margin in found.get("turned", []))
    ties = f" ({found['rounded']:.2g} with experts turned that are {turned} apart)" if turned else ""
    return f"{found['behind']:.2g} below{ties}"


def _where(one: Mapping[str, Any]) -> str:
    return f", where a recipe sets `{one['where']}`" if "where" in one else ""


def sizes_page() -> str:
    """What sizes.yaml replaces, and why."""
    parts = [
        ("Sizes, where a recipe has one", TABLE["sizes"]),
        ("Lengths and amounts, where a recipe sets one", TABLE["amounts"]),
        ("Set by the run", TABLE["run"]),
        ("Set by the run where engines have devices of their own", TABLE["engines_apart"]),
    ]
    text = SIZES_HEAD.format(parallel=", ".join(f"`{name}`" for name in TABLE["parallel"]), most=TABLE["most_ranks"])
    for title, table in parts:
        text += f"\n## {title}\n\n| what | is | why |\n|---|---|---|\n"
        text += "".join(f"| `{name}`{_where(one)} | {one['value']} | {one['why']} |\n" for name, one in table.items())
    text += "\n## Left out\n\n| what | why |\n|---|---|\n"
    text += "".join(f"| `{name}` | {why.strip()} |\n" for name, why in TABLE["left_out"].items())
    text += "".join(f"| `{name}`, with one pipeline stage | {why} |\n" for name, why in TABLE["one_stage"].items())
    text += "\n## Models, made up, with the architecture of the profile's\n\n| profile | architecture | layers |\n|---|---|---|\n"
    models = TABLE["models"].items()
    return text + "".join(f"| {name} | {one['architecture']} | {one['num_hidden_layers']} |\n" for name, one in models)
