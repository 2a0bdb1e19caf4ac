"""Profiles on releases: which release is taken, what every verb makes of it, and what a workspace remembers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.distribution import Made, make_distribution, write_files
from tests.recipes import BASE, with_recipes


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Two releases: the newer one has a stack of the clock without patches, and the profile `full` stands on both."""
    made = make_distribution(tmp_path / "made", lock=True)
    manifests = made.root / "manifests"
    stack = next(manifests.glob("stacks/clock/*.yaml"))
    text = stack.read_text().replace(f"name: {stack.stem}", "name: later")
    (stack.parent / "later.yaml").write_text("\n".join(without_patches(text)) + "\n")
    (manifests / "releases").mkdir()
    greeter = next(manifests.glob("stacks/greeter/*.yaml")).stem
    for name, clock in (("2001.02", stack.stem), ("2001.11", "later")):
        lines = [
            f'name: "{name}"',
            f"summary: The release of {name}.",
            "stacks:",
            f"  greeter: {greeter}",
            f"  clock: {clock}",
        ]
        (manifests / f"releases/{name}.yaml").write_text("\n".join(["schema: 1", *lines]) + "\n")
    profile = 'schema: 1\nname: full\nsummary: On both.\nreleases:\n  "2001.02": {}\n  "2001.11": {}\n'
    (manifests / "profiles/full.yaml").write_text(profile)
    made.good("lock")
    return made


def without_patches(text: str) -> list[str]:
    """The lines of a stack's manifest less its patches."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("patches:"))
    end = next((n for n in range(start + 1, len(lines)) if not lines[n].startswith((" ", "-"))), len(lines))
    return lines[:start] + lines[end:]


def clock_of(made: Made, workspace: Path, *args: str) -> str:
    data = json.loads(made.good("apply", "--profile", "full", "--workspace", str(workspace), "--json", *args))
    assert data["release"] == json.loads((workspace / ".patchctl/state.json").read_text())["release"]
    return str(data["trees"]["clock"]["stack"])


def test_the_release_that_is_named_is_taken_and_the_workspace_remembers_it(made: Made, tmp_path: Path) -> None:
    assert clock_of(made, tmp_path / "new", "--release", "2001.11") == "later"
    assert clock_of(made, tmp_path / "old", "--release", "2001.02") != "later"
    assert "release    2001.11" in made.good("status", "--workspace", str(tmp_path / "new"))
    for name in ("new", "old"):
        made.good("verify", "--workspace", str(tmp_path / name))
    assert "patchctl.release=2001.11" in made.good("status", "--labels", "--workspace", str(tmp_path / "new"))


def test_without_a_name_the_oldest_is_taken_while_none_is_proven_and_it_says_why(made: Made, tmp_path: Path) -> None:
    done = made.patchctl("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"))
    assert done.returncode == 0
    assert "full uses release 2001.02: on 2001.11" in done.stderr
    assert "`--release 2001.11` uses that release anyway" in done.stderr
    assert "release    2001.02" in made.good("status", "--workspace", str(tmp_path / "ws"))


def test_a_state_of_before_there_were_sets_is_of_the_oldest(made: Made, tmp_path: Path) -> None:
    clock_of(made, tmp_path / "ws", "--release", "2001.02")
    file = tmp_path / "ws/.patchctl/state.json"
    state = json.loads(file.read_text())
    del state["release"]
    file.write_text(json.dumps(state))
    made.good("verify", "--workspace", str(tmp_path / "ws"))


@pytest.mark.parametrize(
    "verb",
    [
        "apply",
        "fetch",
        "requirements",
        "doctor",
        "list",
        "report",
        "bisect greet",
        "bundle create",
        "prove loud",
        "recipe list",
        "recipe show full/loud",
        "recipe command full/loud",
        "recipe diff full/loud full/quiet",
        "recipe env loud",
        "preflight -r loud",
        "cluster preflight -r loud",
        "cluster verify",
        "cluster status",
        "cluster apply",
    ],
)
def test_an_unknown_release_is_told_with_the_nearest_one(made: Made, verb: str, tmp_path: Path) -> None:
    more = ["--out", str(tmp_path / "page.html")] if verb == "report" else []
    done = made.patchctl(*verb.split(), "--profile", "full", "--release", "2001.12", *more)
    assert done.returncode == 2
    assert "no release '2001.12'; did you mean '2001.11'?" in done.stderr


def test_a_profile_that_does_not_stand_on_the_release_says_where_it_stands(made: Made) -> None:
    made.edit("manifests/profiles/full.yaml", '  "2001.11": {}\n', "")
    done = made.patchctl("fetch", "--profile", "full", "--release", "2001.11")
    assert done.returncode == 2
    assert "the profile full does not support" in done.stderr
    assert "it supports 2001.02" in done.stderr


def test_list_shows_the_sets_and_every_profile_on_each(made: Made) -> None:
    data = json.loads(made.good("list", "--json"))
    assert [one["name"] for one in data["releases"]] == ["2001.11", "2001.02"]
    assert [one["release"] for one in data["profiles"] if one["name"] == "full"] == ["2001.11", "2001.02"]
    assert json.loads(made.good("list", "releases", "--json")).keys() == {"schema", "what", "releases"}


def test_what_a_profile_changes_of_a_release_must_be_in_it(made: Made) -> None:
    made.edit("manifests/profiles/full.yaml", '"2001.11": {}', '"2001.11": {leaves_out: [clokc]}')
    done = made.patchctl("list")
    assert done.returncode == 2
    assert "the release has no 'clokc'; did you mean 'clock'?" in done.stderr


@pytest.fixture
def trained(made: Made) -> Made:
    """The same with recipes: `loud` and `quiet` on the older release; the newer one has its own `quiet`, and no other."""
    with_recipes(made)
    quiet = "schema: 1\nname: quiet\nsummary: By text.\nextends: shared/base\nsource: 007, 2\noverrides: {greeter.text: later}\n"
    write_files(
        made.root,
        {"manifests/recipes/2001.11/full/quiet.yaml": quiet, "manifests/recipes/2001.11/shared/base.yaml": BASE},
    )
    return made


def text_of(made: Made, *args: str) -> tuple[str, str]:
    shown = json.loads(made.good("recipe", "show", *args, "--json"))
    return shown["release"], shown["overrides"]["greeter.text"]["value"]


def test_a_recipe_is_that_of_the_release(trained: Made) -> None:
    assert text_of(trained, "full/quiet", "--release", "2001.11") == ("2001.11", "later")
    assert text_of(trained, "full/quiet") == text_of(trained, "full/quiet", "--release", "2001.02")
    assert text_of(trained, "full/quiet")[0] == "2001.02"
    assert text_of(trained, "full/quiet", "--release", "2001.11", "greeter.text=mine") == ("2001.11", "mine")
    shown = json.loads(trained.good("recipe", "show", "full/quiet", "--release", "2001.11", "--json"))
    assert shown["extends"] == ["2001.11/shared/base"]
    script = trained.good("recipe", "command", "full/quiet", "--release", "2001.11")
    assert script.startswith("# full/quiet, release 2001.11: By text.") and "later" in script
    said = json.loads(trained.good("recipe", "env", "full/quiet", "--release", "2001.11", "--json"))
    assert (said["release"], said["environment"]) == ("2001.11", {})


@pytest.mark.parametrize("words", [("recipe", "show"), ("recipe", "command"), ("recipe", "env")], ids=" ".join)
def test_a_recipe_can_be_named_with_its_release(trained: Made, words: tuple[str, ...]) -> None:
    assert trained.good(*words, "full/quiet@2001.11") == trained.good(*words, "full/quiet", "--release", "2001.11")
    done = trained.patchctl(*words, "full/quiet@2001.11", "--release", "2001.02")
    assert done.returncode == 2 and "two releases are named" in done.stderr
    done = trained.patchctl(*words, "full/quiet@2025.01")
    assert done.returncode == 2 and done.stderr.count("2001.11") == 1, done.stderr


def test_a_recipe_that_a_release_has_not_is_no_recipe_there(trained: Made) -> None:
    done = trained.patchctl("recipe", "show", "full/loud", "--release", "2001.11")
    assert done.returncode == 2 and "full has no recipe 'loud' on 2001.11" in done.stderr
    done = trained.patchctl("recipe", "show", "full/quiet@2001.11", "--release", "2001.02")
    assert done.returncode == 2 and "two releases are named: 2001.02 and 2001.11" in done.stderr


@pytest.mark.parametrize(
    "words", [("recipe", "show"), ("recipe", "command"), ("recipe", "env"), ("preflight", "-r")], ids=" ".join
)
def test_a_recipe_of_another_release_is_told_with_its_release(trained: Made, words: tuple[str, ...]) -> None:
    done = trained.patchctl(*words, "full/loud", env={"PATCHCTL_RELEASE": "2001.11"})
    assert done.returncode == 2
    assert "full has no recipe 'loud' on 2001.11: it is one of 2001.02" in done.stderr
    assert "name it full/loud@2001.02, or `export PATCHCTL_RELEASE=2001.02` for all verbs" in done.stderr


def test_apply_says_which_release_and_from_which_it_moves(made: Made, tmp_path: Path) -> None:
    def last(*args: str) -> str:
        return made.good("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"), *args).splitlines()[-1]

    assert last("--release", "2001.02") == f"profile full on release 2001.02 is in {tmp_path}/ws"
    assert last("--release", "2001.02") == f"profile full on release 2001.02 is in {tmp_path}/ws"
    moved = (
        f"profile full on release 2001.11 {{}} in {tmp_path}/ws (it was on 2001.02: --release 2001.02 takes it there)"
    )
    assert last("--release", "2001.11", "--dry-run") == moved.format("would be")
    assert last("--release", "2001.11") == moved.format("is")
    assert last("--release", "2001.11") == f"profile full on release 2001.11 is in {tmp_path}/ws"


def test_recipe_list_has_those_of_every_release(trained: Made) -> None:
    def listed(*args: str) -> list[tuple[str, str]]:
        return [
            (r["release"], r["recipe"]) for r in json.loads(trained.good("recipe", "list", *args, "--json"))["recipes"]
        ]

    assert listed() == [("2001.11", "quiet"), ("2001.02", "loud"), ("2001.02", "quiet")]
    assert listed("--release", "2001.11") == [("2001.11", "quiet")]
    assert "on 2001.11" in trained.good("recipe", "list")


def test_recipe_diff_is_across_releases(trained: Made) -> None:
    found = json.loads(trained.good("recipe", "diff", "full/quiet@2001.02", "full/quiet@2001.11", "--json"))
    assert (found["one"], found["other"]) == ("full/quiet@2001.02", "full/quiet@2001.11")
    assert {"section": "overrides", "name": "greeter.text", "one": "hello, it's me", "other": "later"} in [
        {key: row[key] for key in ("section", "name", "one", "other")} for row in found["differences"]
    ]


def test_verify_checks_the_recipes_of_every_release(trained: Made) -> None:
    assert json.loads(trained.patchctl("verify", "--static", "--json").stdout)["checked"]["recipes"] == 3
    quiet = "manifests/recipes/2001.11/full/quiet.yaml"
    trained.edit(quiet, "summary: By text.", "summary: By text.\nneeds: [step]")
    found = json.loads(trained.patchctl("verify", "--static", "--json").stdout)["findings"]
    assert [(f["rule"], f["file"]) for f in found if f["rule"].startswith("recipe")] == [("recipe-needs", quiet)]


def test_a_folder_of_a_profile_that_is_not_on_the_release_is_told(trained: Made) -> None:
    write_files(trained.root, {"manifests/recipes/2001.11/plain/quiet.yaml": "schema: 1\n"})
    done = trained.patchctl("recipe", "list")
    assert done.returncode == 2 and "recipes/2001.11/plain" in done.stderr and "would not be read" in done.stderr


def test_preflight_tells_a_workspace_of_another_release(trained: Made, tmp_path: Path) -> None:
    def workspace(*args: str) -> str:
        done = trained.patchctl("preflight", "-r", "full/quiet", "-w", str(tmp_path / "ws"), "--json", *args)
        return next(str(f["what"]) for f in json.loads(done.stdout)["findings"] if f["name"] == "workspace")

    clock_of(trained, tmp_path / "ws", "--release", "2001.02")
    assert workspace() == f"{tmp_path}/ws holds full"
    assert "the recipe is for release 2001.11" in workspace("--release", "2001.11")


def test_the_variable_names_the_release_for_every_verb(trained: Made, tmp_path: Path) -> None:
    env = {"PATCHCTL_RELEASE": "2001.11"}
    said = json.loads(trained.patchctl("recipe", "show", "full/quiet", "--json", env=env).stdout)
    assert said["release"] == "2001.11"
    done = trained.patchctl("recipe", "show", "full/quiet", "--json", "--release", "2001.02", env=env)
    assert json.loads(done.stdout)["release"] == "2001.02"
    done = trained.patchctl("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"), "--json", env=env)
    assert json.loads(done.stdout)["release"] == "2001.11"


def test_list_and_report_show_what_a_release_has(trained: Made, tmp_path: Path) -> None:
    data = json.loads(trained.good("list", "--release", "2001.11", "--json"))
    assert [one["name"] for one in data["releases"]] == ["2001.11"]
    assert [(one["name"], one["release"]) for one in data["profiles"]] == [("full", "2001.11")]
    assert [one["stack"] for one in data["stacks"] if one["upstream"] == "clock"] == ["later"]
    assert {one["upstream"] for one in data["patches"]} == {"greeter"}
    trained.good("report", "--release", "2001.11", "--out", str(tmp_path / "page.html"))
    page = json.loads(trained.good("report", "--release", "2001.11", "--json", "--out", str(tmp_path / "other.html")))
    assert [(one["recipe"], one["release"]) for one in page["recipes"]] == [("quiet", "2001.11")]
    assert [one["stack"] for one in page["stacks"] if one["upstream"] == "clock"] == ["later"]


def test_a_bundle_is_of_its_release(made: Made, tmp_path: Path) -> None:
    bundle = tmp_path / "full.tar"
    made.good("bundle", "create", "--profile", "full", "--release", "2001.11", "--out", str(bundle))
    assert "release      2001.11" in made.good("bundle", "show", str(bundle))
    assert clock_of(made, tmp_path / "ws", "--bundle", str(bundle)) == "later"
    made.good("bundle", "verify", str(bundle))


def test_prove_is_of_the_stacks_of_the_release(made: Made) -> None:
    write_files(made.root, {"patches/greeter/v1/loud/tests/test_loud.py": ""})
    done = made.patchctl("prove", "step", "--release", "2001.11")
    assert done.returncode == 2 and "no feature 'step' on 2001.11" in done.stderr


def test_stacks_of_two_releases_need_the_release_for_one_pair_of_trees(made: Made, tmp_path: Path) -> None:
    """What the hint names goes on: it is the profile on a release, and not its name alone."""
    write_files(made.root, {"patches/greeter/v1/loud/tests/test_loud.py": ""})
    made.edit("manifests/stacks/clock/later.yaml", "pin:", "extends: v2\npin:")
    done = made.patchctl("prove", "step", "--profile", "full", "--trees", str(tmp_path / "trees"))
    assert done.returncode == 2 and "in 2 profiles: full on 2001.11, full on 2001.02" in done.stderr, done.stderr
    assert "`--profile full --release 2001.02`" in done.stderr


def test_bisect_says_on_which_release(made: Made) -> None:
    for name in ("2001.02", "2001.11"):
        done = made.patchctl("bisect", "--profile", "full", "--release", name, "--json", "--", "true")
        assert json.loads(done.stdout)["release"] == name


def test_show_says_on_which_release_there_is_no_such_feature(made: Made) -> None:
    done = made.patchctl("show", "step", env={"PATCHCTL_RELEASE": "2001.11"})
    assert done.returncode == 2 and "no feature 'step' on 2001.11" in done.stderr
    assert "`PATCHCTL_RELEASE= patchctl list patches`" in done.stderr


def test_what_a_profile_leaves_out_on_one_release_is_of_that_release(made: Made) -> None:
    """Both releases have one stack of the greeter, from which `full` leaves a patch out on the newer one alone."""
    made.edit("manifests/profiles/full.yaml", '"2001.11": {}', '"2001.11": {without: [loud]}')
    rows = json.loads(made.good("list", "profiles", "--profile", "full", "--release", "2001.11", "--json"))["profiles"]
    assert [one["patches"] for one in rows] == [2]
    rows = json.loads(made.good("list", "profiles", "--json"))["profiles"]
    assert [(one["release"], one["patches"]) for one in rows if one["name"] == "full"] == [
        ("2001.11", 2),
        ("2001.02", 4),
    ]
    rows = json.loads(made.good("list", "patches", "--profile", "full", "--release", "2001.11", "--json"))["patches"]
    assert [one["feature"] for one in rows] == ["typo", "polite"]


def test_the_profile_that_is_named_gives_no_trees_of_two_releases(made: Made, tmp_path: Path) -> None:
    """The newer clock comes from the older one, and a profile has it; `full` is on the older release alone."""
    made.edit("manifests/profiles/full.yaml", '  "2001.11": {}\n', "")
    made.edit(
        "manifests/stacks/clock/later.yaml", "name: later", "name: later\ncomes_from: v2\ndropped: {step: It has it.}"
    )
    newer = 'schema: 1\nname: newer\nsummary: On the newer one.\nreleases: {"2001.11": {}}\n'
    write_files(
        made.root,
        {
            "manifests/profiles/newer.yaml": newer,
            "patches/greeter/v1/loud/tests/test_loud.py": "",
        },
    )
    done = made.patchctl("prove", "step", "--stack", "clock/later", "--profile", "full", "--trees", str(tmp_path / "t"))
    assert done.returncode == 2 and "profile full lacks the stack clock/later" in done.stderr, done.stderr
    assert not (tmp_path / "t").exists()


@pytest.fixture
def steps(made: Made) -> tuple[str, str]:
    """The older stack of the clock and the newer one, which has a patch too."""
    older, newer = "v2", "later"
    patch = next((made.root / f"patches/clock/{older}").glob("step/*.patch"))
    write_files(made.root, {f"patches/clock/{newer}/step/{patch.name}": patch.read_text()})
    with (made.root / f"manifests/stacks/clock/{newer}.yaml").open("a") as manifest:
        manifest.write(f"patches:\n  - {patch.name}\n")
    made.good("lock")
    return older, newer


STANDS = "patchctl: note: clock means clock/{}, of "


WORDS = [
    "edit clock",
    "export clock --check",
    "export clock --mbox OUT",
    "export clock --for-upstream step --mbox OUT",
    "new chime --stack clock",
    "import SERIES --stack clock --dry-run",
    "drift clock --against v9 --save-plan OUT",
]


@pytest.mark.parametrize("by", ["option", "variable", "default"])
def test_an_upstream_alone_is_its_stack_on_the_release_in_force(
    made: Made, steps: tuple[str, str], by: str, tmp_path: Path
) -> None:
    """Each command ends as the same with the stack's name, and says which it took."""
    (tmp_path / "series").mkdir()
    release, stack = ("2001.02", steps[0]) if by == "default" else ("2001.11", steps[1])
    option = ["--release", release] if by == "option" else []
    env = {"PATCHCTL_RELEASE": release} if by == "variable" else {}

    def run(text: str, *more: str, **env: str) -> tuple[int, str, str]:
        args = [{"OUT": str(tmp_path / "out"), "SERIES": str(tmp_path / "series")}.get(w, w) for w in text.split()]
        done = made.patchctl(*args, *more, env=env)
        for folder in (tmp_path / "out", made.cache.parent / "home/edit", made.root / f"patches/clock/{stack}/chime"):
            shutil.rmtree(folder, ignore_errors=True)
        return done.returncode, done.stdout, done.stderr

    for words in WORDS:
        named = run(words.replace("clock", f"clock/{stack}"))
        code, out, err = run(words, *option, **env)
        note, _, rest = err.partition("\n")
        assert note.startswith(STANDS.format(stack) + f"release {release}"), words
        assert ("no profile is proven on 2001.11; `--release 2001.11` uses it" in note) is (by == "default")
        assert (code, out, rest) == named
        assert code == 0 or words.startswith(("import", "drift")), named


def test_rebase_and_prove_take_the_stack_of_the_release(made: Made, steps: tuple[str, str]) -> None:
    write_files(made.root, {"patches/greeter/v1/loud/tests/test_loud.py": ""})
    for words in (["rebase", "clock", "--to", steps[0]], ["prove", "nothing", "--stack", "clock"]):
        done = made.patchctl(*words, "--release", "2001.11")
        assert done.returncode == 2 and STANDS.format(steps[1]) in done.stderr


def test_drift_of_a_release_is_of_its_stacks(made: Made) -> None:
    def stacks(*args: str) -> list[str]:
        done = made.patchctl("drift", "--against", "main", "--json", *args)
        assert done.returncode in (0, 20), done.stderr
        return [f"{s['upstream']}/{s['stack']}" for s in json.loads(done.stdout)["stacks"]]

    assert sorted(stacks()) == ["clock/later", "clock/v2", "greeter/v1"]
    assert sorted(stacks("--release", "2001.11")) == ["clock/later", "greeter/v1"]
    assert stacks("clock", "--release", "2001.11") == ["clock/later"]
    assert stacks("clock/v2", "--release", "2001.11") == ["clock/v2"]


def test_an_upstream_that_the_release_has_not_is_told_with_its_stacks(made: Made) -> None:
    made.edit("manifests/releases/2001.11.yaml", "  clock: later\n", "")
    done = made.patchctl("edit", "clock", "--release", "2001.11")
    assert done.returncode == 2
    assert "clock has 2 stacks, but release 2001.11 has none of them" in done.stderr
    assert "name one of clock/later, clock/v2" in done.stderr


def test_what_was_opened_is_what_is_exported(made: Made, steps: tuple[str, str], tmp_path: Path) -> None:
    """The release that is taken by default can change between the two: an export leaves a feature without its proof."""
    made.good("edit", "clock", "--release", "2001.11")
    assert "clock/later: 1 patch, nothing differs" in made.good("export", "clock")
    made.good("edit", "clock", "--release", "2001.02")
    assert "clock/v2: 1 patch, nothing differs" in made.good("export", "clock")
    made.good("edit", "clock/later", "--dir", str(tmp_path / "elsewhere"))
    done = made.patchctl("export", "clock", "--dir", str(tmp_path / "elsewhere"))
    assert "clock/later: 1 patch, nothing differs" in done.stdout
    assert "clock means clock/later, which has a work tree" in done.stderr


def point_release(made: Made, *lines: str) -> None:
    write_files(made.root, {"manifests/releases/2001.11.1.yaml": "\n".join(["schema: 1", *lines]) + "\n"})


NEXT = ('name: "2001.11.1"', "summary: One clock otherwise.", 'extends: "2001.11"')


def for_later_releases(made: Made) -> None:
    made.edit("manifests/profiles/full.yaml", '"2001.11": {}', '">=2001.11": {}')


def test_a_release_of_a_few_lines_has_all_else_of_the_one_that_it_extends(trained: Made, tmp_path: Path) -> None:
    older = json.loads(trained.good("list", "releases", "--json"))["releases"][1]["stacks"]["clock"]
    for_later_releases(trained)
    point_release(trained, *NEXT, f"stacks: {{clock: {older}}}")
    rows = json.loads(trained.good("list", "releases", "--json"))["releases"]
    assert [one["name"] for one in rows] == ["2001.11.1", "2001.11", "2001.02"]
    assert rows[0]["stacks"] == rows[1]["stacks"] | {"clock": older} != rows[1]["stacks"]
    trained.good("lock")
    assert clock_of(trained, tmp_path / "ws", "--release", "2001.11.1") == older
    trained.good("verify", "--workspace", str(tmp_path / "ws"))
    trained.good("verify", "--static")
    assert text_of(trained, "full/quiet@2001.11.1") == ("2001.11.1", "later")


def test_a_release_extends_one_that_extends_another(made: Made) -> None:
    for_later_releases(made)
    point_release(made, *NEXT, "runtime: {}")
    write_files(
        made.root,
        {"manifests/releases/2001.12.yaml": 'schema: 1\nname: "2001.12"\nsummary: Next.\nextends: "2001.11.1"\n'},
    )
    rows = json.loads(made.good("list", "releases", "--json"))["releases"]
    assert rows[0]["stacks"] == rows[2]["stacks"]


@pytest.mark.parametrize(
    ("extends", "fault"),
    [
        ("2001.12", "extends: no release '2001.12'; did you mean '2001.11'?"),
        ("2001.11.1", "extends: cycle: 2001.11.1 -> 2001.11.1"),
    ],
)
def test_what_a_release_extends_must_be_there(made: Made, extends: str, fault: str) -> None:
    point_release(made, *NEXT[:2], f'extends: "{extends}"')
    done = made.patchctl("list")
    assert done.returncode == 2 and fault in done.stderr


@pytest.mark.parametrize(
    ("releases", "fault"),
    [
        ('  ">=2002.01": {}', "no release '>=2002.01'"),
        ('  "2001.02": {}\n  ">=2001.02": {}', "'2001.02' is already covered by '2001.02'"),
        ('  ">=2001.02,<2001.11": {leaves_out: [clokc]}', "the release has no 'clokc'; did you mean 'clock'?"),
        ('  "=2001.02": {}', "expected a release name"),
    ],
)
def test_the_releases_of_a_profile_are_named_once_each(made: Made, releases: str, fault: str) -> None:
    write_files(
        made.root, {"manifests/profiles/full.yaml": f"schema: 1\nname: full\nsummary: On it.\nreleases:\n{releases}\n"}
    )
    done = made.patchctl("list")
    assert done.returncode == 2 and fault in done.stderr


def test_old_words_are_refused_with_the_new_ones(trained: Made) -> None:
    done = trained.patchctl("recipe", "show", "full/quiet", "--set", "greeter.text=mine")
    assert done.returncode == 2 and "an override is KEY=VALUE without an option" in done.stderr
    done = trained.patchctl("list", env={"PATCHCTL_SET": "2001.02"})
    assert done.returncode == 2 and "called PATCHCTL_RELEASE now" in done.stderr
