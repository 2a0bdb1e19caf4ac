"""`patchctl recipe` on a small distribution, and what `verify` says of its recipes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, REPO, Made, git, make_distribution, write_files
from recipes import with_recipes

LOUD = "manifests/recipes/full/loud.yaml"
QUIET = "manifests/recipes/full/quiet.yaml"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return with_recipes(make_distribution(tmp_path_factory.mktemp("original"), (GREETER, CLOCK)))


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    return replace(original, root=Path(shutil.copytree(original.root, tmp_path / "distribution")))


def findings(made: Made) -> list[dict[str, Any]]:
    report = json.loads(made.patchctl("verify", "--static", "--json").stdout)
    ours = ("manifest", "recipe-keys", "recipe-rule", "recipe-needs", "rule-sample")
    return [f for f in report["findings"] if f["rule"] in ours]


def test_list_has_the_recipes_and_not_the_parts(made: Made) -> None:
    text = made.good("recipe", "list")
    assert "full/loud" in text and "2 x 8" in text and "shared" not in text
    assert "has limits" in text
    assert [r["recipe"] for r in json.loads(made.good("recipe", "list", "--json"))["recipes"]] == ["loud", "quiet"]
    assert json.loads(made.good("recipe", "list", "--profile", "plain", "--json"))["recipes"] == []


def test_show_says_where_each_value_comes_from(made: Made) -> None:
    shown = json.loads(made.good("recipe", "show", "full/loud", "--json"))
    tokens, rate = shown["overrides"]["greeter.tokens"], shown["overrides"].get("greeter.rate")
    assert (tokens["value"], tokens["written"], tokens["recipe"]) == ("400", "= prompt + response", "shared/base")
    assert tokens["file"].endswith("manifests/recipes/shared/base.yaml") and tokens["line"] == 16
    assert rate is None
    assert shown["sizes"]["devices"]["value"] == "16"
    assert shown["overrides"]["greeter.text"]["source"] == "007, 2"
    assert (shown["overrides"]["greeter.model"]["value"], shown["environment"]["LD_PRELOAD"]["value"]) == (
        "$BOOK_PATH",
        "/voices/low",
    )
    assert shown["extends"] == ["full/quiet", "shared/base"]
    text = made.good("recipe", "show", "full/loud", "-v")
    assert "greeter.tokens = 400   (= prompt + response)" in text
    assert "limit   Ears: none." in text and "documents" not in text
    titles = 'schema: 1\nswitches: {}\ndocuments: {"007": On noise, "008": On silence}\n'
    write_files(made.root, {"manifests/practice.yaml": titles})
    assert made.good("recipe", "show", "full/loud", "-v").endswith("\ndocuments\n  007  On noise\n")


def test_show_says_what_a_run_comes_to(made: Made) -> None:
    """Of this repository's own first recipe, with as many rows as somebody has; a made one says that it does not know."""
    own = replace(made, root=REPO)
    rows = ("--size", "train_rows=640", "--size", "validation_rows=50")
    text = own.good("recipe", "show", "qwen2.5-1.5b/grpo", *rows)
    assert "steps: 10, 5,120 answers" in text
    assert "validations: 2, 100 answers, 2% of those of training" in text
    assert "checkpoints: 1 written, 1 of 17.3 GiB kept: 17.3 GiB" in text
    found = json.loads(own.good("recipe", "show", "qwen2.5-1.5b/grpo", *rows, "--json"))["totals"]
    assert (found["steps"], found["kept"], found["kept_bytes"]) == (10, 1, found["checkpoint_bytes"])


def test_a_patch_that_cannot_be_read_is_named_where_the_profile_has_it(made: Made) -> None:
    patch = made.patch("loud")
    patch.write_bytes(patch.read_bytes().replace(b"\n", b"\r\n"))
    done = made.patchctl("recipe", "show", "full/loud")
    assert done.returncode == 2 and patch.name in done.stderr and "internal" not in done.stderr


def test_show_says_what_it_cannot_count(made: Made) -> None:
    text = made.good("recipe", "show", "full/loud")
    assert "steps: not known; --size train_rows=N says" in text
    assert json.loads(made.good("recipe", "show", "full/loud", "--json"))["totals"]["steps"] is None


def test_a_value_of_the_command_line_is_told_as_such(made: Made) -> None:
    args = ("--nodes", "1", "--size", "prompt=16", "greeter.text=x", "--path", "model=/m")
    shown = json.loads(made.good("recipe", "show", "full/loud", *args, "--json"))
    assert (shown["sizes"]["nodes"]["value"], shown["sizes"]["devices"]["value"]) == ("1", "8")
    assert shown["overrides"]["greeter.tokens"]["value"] == "304"
    assert shown["overrides"]["greeter.text"]["recipe"] == "the command line"
    assert shown["overrides"]["greeter.model"]["value"] == "/m"


STAND_IN = '#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n'


def ran(made: Made, tmp_path: Path, script: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a printed command with a python3 that prints its arguments, one a line."""
    write_files(tmp_path, {"bin/python3.sh": STAND_IN})
    (tmp_path / "bin/python3.sh").rename(tmp_path / "bin/python3")
    (tmp_path / "ws" / "greeter").mkdir(parents=True, exist_ok=True)
    own = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "WORKSPACE": str(tmp_path / "ws"), **(env or {})}
    return subprocess.run(
        ["sh", "-c", script, "run.sh", "more=1"], env=own, capture_output=True, text=True, check=False
    )


def test_the_command_gives_every_word_as_it_is(made: Made, tmp_path: Path) -> None:
    script = made.good("recipe", "command", "full/quiet", "--path", "model=/a b/it's $HOME")
    done = ran(made, tmp_path, script)
    assert done.returncode == 0, done.stderr
    folder, *words = done.stdout.splitlines()
    assert folder == str(tmp_path / "ws" / "greeter")
    assert words[:3] == ["-m", "greeter.hello", "--config-name=greeting"]
    assert words[3:] == [
        "greeter.model='/a b/it\\'s $HOME'",
        "greeter.tokens=336",
        "trainer.nodes=2",
        "greeter.text='hello, it\\'s me'",
        "greeter.rate=1e-6",
        "+greeter.sizes=[8,16]",
        "more=1",
    ]
    assert json.loads(made.good("recipe", "command", "full/quiet", "--json"))["overrides"][1:] == words[4:-1]


@pytest.mark.parametrize("value", ["'a b'", '"[x"', "''", r"'it\'s'"])
def test_a_value_in_hydras_own_quotes_keeps_them(made: Made, tmp_path: Path, value: str) -> None:
    script = made.good("recipe", "command", "full/quiet", "--path", "model=/m", f"greeter.text={value}")
    assert f"greeter.text={value}" in ran(made, tmp_path, script).stdout.splitlines()


def test_a_path_that_is_there_is_that_of_the_folder_of_the_call(made: Made, tmp_path: Path) -> None:
    """The printed command starts in another folder."""
    folder = made.cache.parent / "home"  # where the tool is run
    (folder / "a model").mkdir(parents=True, exist_ok=True)
    script = made.good("recipe", "command", "full/quiet", "--path", "model=a model")
    assert f"greeter.model='{folder}/a model'" in ran(made, tmp_path, script).stdout.splitlines()
    assert "greeter.model=of-a-hub" in made.good("recipe", "command", "full/quiet", "--path", "model=of-a-hub")


def test_the_next_command_has_what_was_said(made: Made) -> None:
    said = ("--size", "prompt=256", "--nodes", "4", "--path", "model=/a b", "greeter.text=it's")
    shown = made.good("recipe", "show", "full/quiet", *said)
    (following,) = re.findall(r"(?m)^next: patchctl (preflight .*)", shown)
    assert shlex.split(following)[-len(said) :] == [*said]


def test_rows_may_be_said_of_every_recipe(made: Made) -> None:
    made.good("recipe", "show", "full/quiet", "--size", "train_rows=1000", "--size", "validation_rows=10")


def test_the_command_ends_where_its_folder_is_not(made: Made, tmp_path: Path) -> None:
    """A typing error in WORKSPACE must not start whatever module of that name the current folder has."""
    script = made.good("recipe", "command", "full/quiet", "--path", "model=/m")
    done = ran(made, tmp_path, script, {"WORKSPACE": str(tmp_path / "elsewhere")})
    assert done.returncode != 0
    assert done.stdout == "" and "elsewhere/greeter" in done.stderr


def test_the_command_begins_in_the_checkout_that_was_patched_in_place(made: Made, tmp_path: Path) -> None:
    checkout, ws = tmp_path / "a checkout", tmp_path / "in place"
    git(tmp_path, "clone", "--quiet", str(made.origins / "greeter"), str(checkout))
    made.good("apply", "--profile", "full", "--workspace", str(ws), "--in-place", f"greeter={checkout}")
    command = ("recipe", "command", "full/quiet", "--path", "model=/m", "--workspace", str(ws))
    script = made.good(*command)
    assert ran(made, tmp_path, script, {"WORKSPACE": str(ws)}).stdout.splitlines()[0] == str(checkout)
    assert json.loads(made.good(*command, "--json"))["script"] == script


def test_the_command_leaves_nothing_where_a_package_is_installed(made: Made, tmp_path: Path) -> None:
    """Hydra, for one, writes to the working directory."""
    ws = tmp_path / "ws"
    made.good("apply", "--profile", "full", "--workspace", str(ws))
    state = json.loads((ws / ".patchctl/state.json").read_text())
    state["trees"]["greeter"] |= {"kind": "into", "folder": str(tmp_path), "record": "greeter-1.dist-info/RECORD"}
    (ws / ".patchctl/state.json").write_text(json.dumps(state))
    script = made.good("recipe", "command", "full/quiet", "--path", "model=/m", "--workspace", str(ws))
    assert ran(made, tmp_path, script).stdout.splitlines()[0] == str(ws)


def test_a_path_that_nobody_gave_is_asked_for_when_it_runs(made: Made, tmp_path: Path) -> None:
    script = made.good("recipe", "command", "full/quiet")
    refused = ran(made, tmp_path, script)
    assert refused.returncode != 0 and "BOOK_PATH: the greeters book" in refused.stderr
    done = ran(made, tmp_path, script, {"BOOK_PATH": "/a, b"})
    assert "greeter.model='/a, b'" in done.stdout.splitlines()


def test_env_in_each_format(made: Made) -> None:
    script = made.good("recipe", "env", "-p", "full", "quiet")
    assert "# on each node: export GREETER_PORT=...   a free port of this node" in script
    done = subprocess.run(["sh", "-c", f'{script}echo "$QUEUE $GREETING"'], capture_output=True, text=True, check=True)
    assert done.stdout == "2 it's ${HOME}\n"
    assert made.good("recipe", "env", "full/loud", "--format", "dotenv").splitlines() == [
        "QUEUE=1",
        "GREETER_LOUD=3",
        "LD_PRELOAD=/voices/low",
    ]
    found = json.loads(made.good("recipe", "env", "full/quiet", "--format", "json"))
    assert found["environment"] == {"QUEUE": "2", "GREETING": "it's ${HOME}"}
    refused = made.patchctl("recipe", "env", "full/quiet", "--format", "dotenv")
    assert refused.returncode == 2 and "cannot be said in a dotenv file" in refused.stderr


def test_no_text_of_a_recipe_reaches_the_shell(made: Made, tmp_path: Path) -> None:
    evil = "two\ntouch owned\n$(touch owned)`touch owned`"
    text = json.dumps(evil)
    made.edit(LOUD, "summary: Says it aloud.", f"summary: {text}")
    made.edit(LOUD, 'limits: ["Ears: none."]', f"limits: [{text}]")
    made.edit("manifests/recipes/shared/base.yaml", "GREETER_PORT: a free port of this node", f"GREETER_PORT: {text}")
    made.edit("manifests/recipes/shared/base.yaml", "what: the greeter's book", f"what: {text}")
    for args in (["recipe", "env", "full/loud"], ["recipe", "command", "full/loud"]):
        subprocess.run(["sh", "-c", made.good(*args)], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=False)
    assert not (tmp_path / "owned").exists()


def test_diff_names_what_only_one_has(made: Made) -> None:
    rows = json.loads(made.good("recipe", "diff", "full/quiet", "full/loud", "--json"))["differences"]
    by_name = {row["name"]: (row["one"], row["other"]) for row in rows}
    assert by_name["greeter.rate"] == ("1e-6", None)
    assert by_name["greeter.tokens"] == ("336", "400")
    assert by_name["QUEUE"] == ("2", "1")
    assert by_name["clock.step"] == (None, "2")
    assert "greeter.text" not in by_name
    assert "no difference" in made.good("recipe", "diff", "full/loud", "full/loud")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["recipe", "show", "full/laud"], "full has no recipe 'laud'; did you mean 'loud'?"),
        (["recipe", "show", "loud"], "which profile? loud is the name of a recipe alone"),
        (["recipe", "show", "full"], "which recipe? full has: loud, quiet"),
        (["recipe", "show", "plain"], "the profile plain has no recipes"),
        (["recipe", "env", "-p", "full", "full"], "full has no recipe 'full'"),
        (["recipe", "show", "ful/loud"], "no profile 'ful'; did you mean 'full'?"),
        (["recipe", "env", "-p", "plain", "full/loud"], "are of two profiles"),
        (["recipe", "command", "full/loud", "--size", "promt=1"], "no size 'promt'; did you mean 'prompt'?"),
        (["recipe", "command", "full/loud", "--size", "prompt=1.5"], "expected a whole number"),
        (["recipe", "command", "full/loud", "--size", "prompt=1e99999999"], "expected a whole number"),
        (["recipe", "command", "full/loud", "greeter.tokens== 1e999"], "no number of this size"),
        (["recipe", "command", "full/loud", "~greeter.text=x"], "~greeter.text takes a key away"),
        (["recipe", "command", "full/loud", "--path", "modl=/m"], "no path 'modl'; did you mean 'model'?"),
        (
            ["recipe", "command", "full/loud", "--size", "nodes"],
            "--size takes NAME=VALUE, not 'nodes'\n  try: for example --size batch=256",
        ),
        (["recipe", "command", "full/loud", "greeter.text"], "for example trainer.total_epochs=1"),
        (["recipe", "command", "full/loud", "--path", "model"], "for example --path model=/data/model"),
        (["recipe", "command", "full/loud", "greeter.x== promt"], "greeter.x: no size 'promt'"),
        (["recipe", "command", "full/loud", "--nodes", "0"], "--nodes"),
    ],
)
def test_a_wrong_request_is_2(made: Made, args: list[str], message: str) -> None:
    done = made.patchctl(*args)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_run_that_breaks_a_rule_is_refused_with_what_to_try(made: Made) -> None:
    done = made.patchctl("recipe", "command", "full/loud", "--nodes", "3")
    assert done.returncode == 2 and done.stdout == ""
    assert "full/loud breaks tokens-fit: tokens fit the devices" in done.stderr
    assert "greeter.tokens % devices == 0 does not hold: 16 and 0" in done.stderr
    assert "(a device has one ear). Try: other sizes" in done.stderr
    assert made.patchctl("recipe", "env", "full/loud", "--nodes", "3").returncode == 2
    shown = made.patchctl("recipe", "show", "full/loud", "--nodes", "3")
    assert shown.returncode == 1 and "[tokens-fit]" in shown.stdout
    assert "the command line: tokens fit the devices" in shown.stdout
    (hint,) = re.findall("`patchctl (.*?)`", done.stderr)
    again = made.patchctl(*shlex.split(hint))
    assert again.returncode == 1 and "[tokens-fit]" in again.stdout


KNOWN_KEYS = "".join(
    f"{key}\t{kind}\tall\n"
    for key, kind in {
        "clock": "free",
        "greeter": "class",
        **dict.fromkeys(("greeter.model", "greeter.tokens", "greeter.text", "greeter.rate"), "value"),
        "greeter.sizes": "field",
        "trainer": "mapping",
        "trainer.nodes": "value",
    }.items()
)


def test_an_override_that_the_framework_does_not_know_is_refused(made: Made) -> None:
    write_files(made.root, {"manifests/keys/greeter/v1.tsv": KNOWN_KEYS})
    assert findings(made) == []
    made.good("recipe", "command", "full/loud", "greeter.text=x", "+trainer.own=1")
    typo = ("greeter.txt=x",)
    for verb in (["recipe", "command", "full/loud"], ["recipe", "env", "full/loud"]):
        done = made.patchctl(*verb, *typo)
        assert done.returncode == 2 and done.stdout == ""
        assert "greeter.txt is none of greeting" in done.stderr and "Try: greeter.text" in done.stderr
    shown = made.patchctl("recipe", "show", "full/loud", *typo)
    assert shown.returncode == 1 and "[known-keys]" in shown.stdout
    made.edit(QUIET, "greeter.text:", "greeter.txt:")
    named = {f["message"].partition(":")[0]: (f["file"], f["line"]) for f in findings(made)}
    assert named["full/quiet breaks known-keys"] == (QUIET, 10)


def test_a_stack_that_recipes_start_without_a_list_of_keys_is_an_error(made: Made) -> None:
    made.root.joinpath("manifests/keys/greeter/v1.tsv").unlink()
    found = findings(made)
    assert [(f["rule"], f["severity"], f["file"]) for f in found] == [
        ("recipe-keys", "error", "manifests/keys/greeter/v1.tsv")
    ]
    assert found[0]["message"].startswith("recipes start greeter/v1, which has no list of keys")
    assert made.patchctl("verify", "--static").returncode == 1


def test_sound_recipes_have_no_findings(made: Made) -> None:
    assert findings(made) == []
    report = json.loads(made.patchctl("verify", "--static", "--json").stdout)
    assert (report["checked"]["recipes"], report["checked"]["recipe rules"]) == (2, 2)


def test_verify_names_the_rule_and_the_line(made: Made) -> None:
    made.edit(LOUD, "QUEUE: 1", "QUEUE: 2")
    (found,) = findings(made)
    assert (found["rule"], found["file"], found["line"]) == ("recipe-rule", LOUD, 9)
    assert "full/loud breaks loud-queue: who is loud has QUEUE=1: QUEUE is 2, not 1 (others wait)." in found["message"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("needs: [loud, step]", "needs: [step]", "GREETER_LOUD switches loud on, which is not needed"),
        ("needs: [loud, step]", "needs: [loud]", "clock.step switches step on, which is not needed"),
        ("needs: [loud, step]", "needs: [loud, step, polite]", "polite is needed, and env.GREETER_POLITE is not set"),
        ("needs: [loud, step]", "needs: [loud, step, lout]", "lout is none; did you mean 'loud'?"),
    ],
)
def test_needs_and_switches_belong_together(made: Made, old: str, new: str, message: str) -> None:
    made.edit(LOUD, old, new)
    (found,) = findings(made)
    assert (found["rule"], found["file"], found["line"]) == ("recipe-needs", LOUD, 5)
    assert message in found["message"]


@pytest.mark.parametrize(
    ("recipe", "setting", "hint"),
    [
        ("quiet", "+clock.step=3", "`extends: quiet`, `needs: [step]` and clock.step"),
        ("loud", "+clock.step=null", "`extends: loud` and `without: [step]`"),
    ],
)
def test_a_switch_on_the_command_line_is_told_of_a_recipe_of_ones_own(
    made: Made, recipe: str, setting: str, hint: str
) -> None:
    """needs cannot be said beside an override; the way that is told is then walked."""
    done = made.patchctl("recipe", "command", f"full/{recipe}", setting)
    assert done.returncode == 2
    assert hint in done.stderr and "manifests/recipes/full/NAME.yaml" in done.stderr
    key, _, value = setting.partition("=")
    more = "needs: [step]" if recipe == "quiet" else "without: [step]"
    own = f"schema: 1\nname: own\nsummary: My own.\nextends: {recipe}\n{more}\noverrides:\n  {key}: {{value: '{value}', ours: tried}}\n"
    write_files(made.root, {"manifests/recipes/full/own.yaml": own})
    made.good("recipe", "command", "full/own")


@pytest.mark.parametrize(
    ("file", "old", "new", "line", "message"),
    [
        (LOUD, "extends: quiet", "extends: quite", 4, "no recipe 'full/quite'; did you mean 'full/quiet'?"),
        (QUIET, "name: quiet", "name: silent", 2, "expected 'quiet', the file's name"),
        (LOUD, "extends: quiet", "extends: loud", 4, "a circle: full/loud -> full/loud"),
        (LOUD, "greeter.rate", "greeter.rat", 6, "'greeter.rat' is nothing that it inherits"),
        (LOUD, "name: loud", "name: laud", 2, "expected 'loud', the file's name"),
        (LOUD, "response: 288", "response: = 288 / 5", 13, "288 / 5 is 57.6, and a whole number is needed"),
        (LOUD, "response: 288", "response: = respond", 13, "no size 'respond'; did you mean 'response'?"),
        (LOUD, "response: 288", "response: = response", 13, "a circle: response -> response"),
        (LOUD, "response: 288", "response: = open(0)", 13, "the functions are min(...) and max(...)"),
        (LOUD, "+clock.step: 2", '+clock.step: "@clock"', 15, "no path 'clock'"),
        (LOUD, "sizes:", "size:", 12, "unknown key; did you mean 'sizes'?"),
        ("manifests/rules.yaml", "env.GREETER_LOUD]", "greeter.loudness]", 7, "no fact 'greeter.loudness'"),
        ("manifests/rules.yaml", "% devices == 0", "% devices", 16, "is no comparison of two expressions"),
    ],
)
def test_a_wrong_recipe_is_named_with_its_line(
    made: Made, file: str, old: str, new: str, line: int, message: str
) -> None:
    made.edit(file, old, new)
    found = findings(made)
    assert (found[0]["file"], found[0]["line"]) == (file, line)
    assert message in found[0]["message"]
    done = made.patchctl("recipe", "show", "full/loud")
    assert done.returncode == 2 and message in done.stderr
    assert made.patchctl("list").returncode == 0  # a recipe stops nothing that needs none


def test_what_would_not_be_read_is_told(made: Made) -> None:
    write_files(made.root, {"manifests/recipes/fulll/x.yaml": "", "manifests/recipes/full/x.yml": ""})
    messages = [f["message"] for f in findings(made)]
    assert any("did you mean 'full'?" in m for m in messages) and any("expected files NAME.yaml" in m for m in messages)


def test_a_rule_is_held_against_its_samples(made: Made) -> None:
    made.edit(
        "manifests/rules.yaml", "bad: [{greeter.tokens: 17, devices: 8}]", "bad: [{greeter.tokens: 24, devices: 8}]"
    )
    made.edit("manifests/rules.yaml", "good: [{env.GREETER_LOUD: 3, env.QUEUE: 1}]", "good: [{env.GREETER_LOUD: 3}]")
    found = [(f["rule"], f["line"], f["message"]) for f in findings(made)]
    assert found == [
        ("rule-sample", 10, "loud-queue is broken by its good sample: QUEUE is not set, not 1"),
        ("rule-sample", 19, "tokens-fit is kept by its bad sample"),
    ]


def test_a_distribution_without_recipes_has_none(tmp_path: Path) -> None:
    made = make_distribution(tmp_path)
    assert made.good("recipe", "list") == "0 recipes; nodes x devices\n"
    assert made.patchctl("recipe", "show", "full/loud").returncode == 2
