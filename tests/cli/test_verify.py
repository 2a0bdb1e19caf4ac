"""`patchctl verify` on a distribution, as a user runs it: a good one, then one fault a case."""

from __future__ import annotations

import json
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import formats
from distribution import CLOCK, GREETER, Made, Patch, Upstream, git, make_distribution, write_files

STACK = "manifests/stacks/greeter/v1.yaml"
LOCK = "manifests/locks/greeter/v1.json"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Locked, with generated pages and schemas."""
    made = make_distribution(tmp_path_factory.mktemp("original"), lock=True)
    (made.root / "manifests" / "schema").mkdir()
    made.good("lock", "--pages")
    return made


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    """A copy to break; cache and upstreams are shared, since nothing here changes them."""
    return replace(original, root=Path(shutil.copytree(original.root, tmp_path / "distribution")))


def verify(made: Made, *args: str) -> tuple[int, dict[str, Any]]:
    done = made.patchctl("verify", "--json", *args)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def rules(report: dict[str, Any]) -> set[str]:
    return {str(f["rule"]) for f in report["findings"]}


def test_a_good_distribution(made: Made) -> None:
    code, report = verify(made)
    assert (code, report["findings"], report["not_checked"]) == (0, [], [])
    assert report["schema"] == "patchctl.verify/1"
    assert report["checked"] == {"Python files": 3, "git trees": 2, "patches": 4, "profiles": 2, "stacks": 2}


def test_a_good_distribution_as_text_says_how_much_was_checked(made: Made) -> None:
    assert made.good("verify").splitlines()[0] == (
        "checked 3 Python files, 2 git trees, 4 patches, 2 profiles, 2 stacks: no errors"
    )
    assert made.good("verify", "--quiet") == ""


@dataclass(frozen=True)
class Fault:
    """One change to the good distribution; the rules that it breaks, and the file of the finding of the first one.

    With `relock` the lock is written anew after it, so that what remains is the fault itself.
    """

    name: str
    broken: tuple[str, ...]
    file: str
    change: Callable[[Made], None]
    relock: bool = False


def edit(file: str, old: str, new: str) -> Callable[[Made], None]:
    return lambda made: made.edit(made.patch(file[1:]) if file.startswith("@") else file, old, new)


def write(file: str, text: str | None) -> Callable[[Made], None]:
    return lambda made: write_files(made.root, {file: text})


def rename_loud(made: Made) -> None:
    old = made.patch("loud")
    old.rename(old.with_name("0005-feature-loud.patch"))
    made.edit(STACK, "0003-feature-loud", "0005-feature-loud")
    made.good("lock", "--pages")


def change_lock(made: Made, change: Callable[[dict[str, Any]], object]) -> None:
    lock = json.loads((made.root / LOCK).read_text())
    change(lock)
    (made.root / LOCK).write_text(json.dumps(lock))


def carry_twice(made: Made) -> None:
    made.edit(made.patch("loud"), "Upstream-Status", "Carries: greeter/manners.py\nUpstream-Status")
    shutil.copytree(made.patch("polite").parent / "files", made.patch("loud").parent / "files")


def other_tree_list(made: Made) -> None:
    file = made.root / "manifests" / "trees" / "greeter" / "v1.tsv"
    file.write_text(file.read_text().replace("run.sh", "ran.sh"))


TYPO = "patches/greeter/v1/typo/0001-bugfix-typo.patch"
POLITE = "patches/greeter/v1/polite/0002-feature-polite.patch"
LOUD = "patches/greeter/v1/loud/0003-feature-loud.patch"
STEP = "patches/clock/v2/step/0001-feature-step.patch"
FAULTS = (
    Fault("manifest_unknown_key", ("manifest",), STACK, edit(STACK, "name: v1", "name: v1\nnmae: v1")),
    Fault("manifest_patch_not_there", ("manifest",), STACK, write(TYPO, None)),
    Fault("patch_crlf", ("patch-file",), TYPO, edit("@typo", "From: patchctl <patchctl@localhost>", "From: p <p@localhost>\r")),
    Fault("patch_no_author", ("patch-file",), TYPO, edit("@typo", "From: patchctl <patchctl@localhost>\n", "")),
    Fault("patch_leaves_the_tree", ("patch-file",), TYPO,
          lambda m: m.patch("typo").write_text(m.patch("typo").read_text().replace("greeter/hello.py", "../hello.py"))),
    Fault("patch_carries_nothing", ("patch-file",), POLITE, write("patches/greeter/v1/polite/files/greeter/manners.py", None)),
    Fault("number_gap", ("number-gap",), STACK, rename_loud, relock=True),
    Fault("subject_too_long", ("subject-length",), TYPO,
          edit("@typo", "the greeting right", "the greeting right, in every place where anybody greets anybody"), relock=True),
    Fault("requires_nobody", ("requires-known",), STEP,
          edit("@step", "typo@greeter", "tpyo@greeter"), relock=True),
    Fault("requires_a_later_one", ("requires-known",), POLITE,
          edit("@polite", "Carries:", "Requires: loud\nCarries:"), relock=True),
    Fault("profile_without_what_others_require", ("selection", "applies"), "manifests/profiles/plain.yaml",
          edit("manifests/profiles/plain.yaml", "polite, loud", "polite, typo")),
    Fault("profile_without_unknown", ("selection",), "manifests/profiles/plain.yaml",
          edit("manifests/profiles/plain.yaml", "polite, loud", "polite, luod"), relock=True),
    Fault("comes_from_a_stack_that_is_gone", ("dropped",), STACK, edit(STACK, "name: v1", "name: v1\ncomes_from: v0")),
    Fault("carried_by_nobody", ("carried-file",), "patches/greeter/v1/polite/files/greeter/forms.py",
          write("patches/greeter/v1/polite/files/greeter/forms.py", "")),
    Fault("carried_twice", ("carried-file", "applies", "lock", "page-stale"), LOUD, carry_twice),
    Fault("unlisted_patch", ("unlisted-file",), "patches/greeter/v1/x",
          write("patches/greeter/v1/x/0004-bugfix-x.patch", "")),
    Fault("unlisted_number", ("unlisted-file",), "patches/greeter/v1/loud/0004-feature-loud.patch",
          write("patches/greeter/v1/loud/0004-feature-loud.patch", "")),
    Fault("wrong_preimage_id", ("preimage-chain", "applies", "lock"), POLITE,
          lambda m: m.patch("polite").write_text(_other_preimage(m.patch("polite").read_text()))),
    Fault("shifted_hunk", ("applies", "lock"), TYPO, edit("@typo", "@@ -4,7 +4,7 @@", "@@ -5,7 +5,7 @@")),
    Fault("lock_not_there", ("lock",), LOCK, write(LOCK, None)),
    Fault("lock_is_no_json", ("lock",), LOCK, write(LOCK, "{")),
    Fault("lock_of_another_pin", ("lock", "lock-tree"), LOCK,
          lambda m: change_lock(m, lambda lock: lock["pin"].update(tree="0" * 40))),
    Fault("lock_of_another_patch", ("lock", "page-stale"), TYPO, edit("@typo", "The code does it", "It does it")),
    Fault("lock_of_another_carried_file", ("lock",), POLITE,
          edit("patches/greeter/v1/polite/files/greeter/manners.py", "please", "kindly")),
    Fault("lock_in_another_order", ("lock",), LOCK,
          lambda m: change_lock(m, lambda lock: lock["patches"].reverse())),
    Fault("lock_with_another_blob", ("lock-blob", "lock-tree"), TYPO,
          lambda m: change_lock(m, lambda lock: lock["patches"][0]["files"][0]["before"].__setitem__(1, "0" * 40))),
    Fault("lock_with_another_tip", ("lock-tree",), LOCK,
          lambda m: change_lock(m, lambda lock: lock["results"][0]["forms"]["git"].update(tip_commit="0" * 40))),
    Fault("tree_list_with_another_name", ("tree-list",), "manifests/trees/greeter/v1.tsv", other_tree_list),
    Fault("schema_changed", ("schema-stale",), "manifests/schema/stack.schema.json",
          write("manifests/schema/stack.schema.json", "{}\n")),
    Fault("page_changed", ("page-stale",), "docs/patches/greeter/v1/typo.md", write("docs/patches/greeter/v1/typo.md", "")),
    Fault("page_not_there", ("page-stale",), "docs/patches/README.md", write("docs/patches/README.md", None)),
    Fault("table_changed", ("page-stale",), "docs/patches/greeter/v1/README.md",
          edit("docs/patches/greeter/v1/README.md", "| fix |", "| feature |")),
)  # fmt: skip


def _other_preimage(text: str) -> str:
    at = text.index("\nindex ") + len("\nindex ")
    return text[:at] + "1" * 40 + text[at + 40 :]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_one_fault(made: Made, fault: Fault) -> None:
    fault.change(made)
    if fault.relock:
        made.good("lock")
    code, report = verify(made)
    assert rules(report) == set(fault.broken)
    found = next(f for f in report["findings"] if f["rule"] == fault.broken[0])
    assert found["file"] == fault.file
    assert code == (0 if found["severity"] == "note" else 1)


_CODE = Patch("code", {"greeter/hello.py": "def hello(name):\n    return NAME + name\n"}, "hello: greet", "env NAME=x")
CODE_FAULTS = {
    "does_not_compile": (
        replace(_CODE, edits={"greeter/hello.py": "def hello(name):\n    return NAME + (name\n"}),
        {"python-compiles"},
    ),
    "gains_an_undefined_name": (_CODE, {"undefined-name"}),
    "carries_an_undefined_name": (
        replace(_CODE, edits={"README.md": "NAME\n"}, carries={"greeter/new.py": "print(nobody)\n"}),
        {"undefined-name"},
    ),
    "carries_what_does_not_compile": (
        replace(_CODE, edits={"README.md": "NAME\n"}, carries={"greeter/new.py": "print(\n"}),
        {"python-compiles"},
    ),
    "switch_that_nothing_reads": (
        replace(_CODE, edits={"README.md": "names\n"}, switch="config greeter.NAME=x"),
        {"switch-in-code"},
    ),
}


@pytest.mark.parametrize("name", CODE_FAULTS)
def test_one_fault_of_the_code(tmp_path: Path, name: str) -> None:
    patch, expected = CODE_FAULTS[name]
    made = make_distribution(tmp_path, [replace(GREETER, patches=[patch])], lock=True)
    code, report = verify(made)
    assert (code, rules(report)) == (1, expected)


def test_generated_files_that_a_new_stack_forgets_are_named(made: Made) -> None:
    """A stack of the next pin, as somebody writes it who does not know of what upstream's build generates."""
    text = (made.root / STACK).read_text().partition("patches:")[0]
    write_files(made.root, {"manifests/stacks/greeter/v2.yaml": text.replace("name: v1", "name: v2") + "patches: []\n"})
    why = "generated:\n  - path: greeter/_version.py\n    content: 'V = 1'\n    why: it does not start without it\n"
    with (made.root / STACK).open("a") as out:
        out.write(why)
    _, report = verify(made)
    (found,) = [f for f in report["findings"] if f["rule"] == "generated-missing"]
    assert (found["severity"], found["file"]) == ("note", "manifests/stacks/greeter/v2.yaml")
    assert "greeter/_version.py, as greeter/v1 has: it does not start without it" in found["message"]
    with (made.root / "manifests/stacks/greeter/v2.yaml").open("a") as out:
        out.write(why)
    assert "generated-missing" not in rules(verify(made)[1])


ON = "@pytest.mark.on\ndef test(): ...\n"


@pytest.mark.parametrize(
    "file", ["greeter/test_lowd.py", "greeter/v1/test_lowd.py", "test_loud.py", "mutants/lowd.yaml"]
)
def test_what_lies_in_no_features_folder_is_named(made: Made, file: str) -> None:
    """Nothing runs it: a test of a need, or a mutation, outside of `patches/`."""
    behaviour = "tests/behaviour"
    for patch, owner in (("typo", "greeter/v1"), ("step", "clock/v2")):
        folder = f"patches/{owner}/{patch}"
        write_files(
            made.root, {f"{folder}/tests/test_{patch}_part.py": ON, f"{folder}/mutants/{patch}.yaml": "file: x\n"}
        )
    assert "left-over" not in rules(verify(made)[1])
    write_files(made.root, {f"{behaviour}/{file}": ON if file.endswith(".py") else "file: x\n"})
    code, report = verify(made)
    found = [(f["file"], f["severity"]) for f in report["findings"] if f["rule"] == "left-over"]
    assert code == 1 and found == [(f"{behaviour}/{file}", "error")]


@pytest.mark.parametrize("whole", [False, True])
def test_a_folder_that_no_line_of_the_manifest_names(made: Made, whole: bool) -> None:
    """Of a feature that is gone, or is not entered yet: an error, with its patch in it or without."""
    folder = "patches/greeter/v1/lowd"
    patch = {f"{folder}/0009-feature-lowd.patch": made.patch("polite").read_text()} if whole else {}
    write_files(made.root, {f"{folder}/tests/test_lowd.py": ON, **patch})
    code, report = verify(made)
    found = [f["file"] for f in report["findings"] if f["rule"] == "unlisted-file"]
    assert code == 1 and found and all(file.startswith(folder) for file in found)


def test_a_test_of_what_upstream_does_without_us_is_no_left_over(made: Made) -> None:
    write_files(made.root, {"tests/behaviour/greeter/test_memory.py": "def test(): ...\n"})
    assert "left-over" not in rules(verify(made)[1])


def test_one_feature_in_two_patches_of_a_stack(tmp_path: Path) -> None:
    again = Patch("typo", {"README.md": "GREETER\n"}, "readme: name the variable", "env GREETER=1")
    made = make_distribution(tmp_path, [replace(GREETER, patches=[GREETER.patches[0], again])], lock=True)
    code, report = verify(made)
    assert (code, rules(report)) == (1, {"feature-unique"})


def test_faults_that_upstream_has_itself_are_not_the_patchs(tmp_path: Path) -> None:
    files = {"a.py": "print(nobody)\nx = 1\n", "b.py": "print 'old'\n"}
    patch = Patch("more", {"a.py": "print(nobody)\nx = 2\n", "b.py": "print 'older'\n"}, "a: count further")
    made = make_distribution(tmp_path, [Upstream("greeter", "v1", files, [patch])], lock=True)
    assert verify(made)[0] == 0


def unreachable(made: Made, tmp_path: Path) -> Made:
    """The same with remotes that are somewhere else, and an empty cache: for runs with --offline."""
    for name in ("greeter", "clock"):
        address = f"https://example.org/{name}.git"
        made.edit("manifests/upstreams.yaml", (made.origins / name).as_uri(), address)
    return replace(made, cache=tmp_path / "empty cache")


def test_a_source_that_cannot_be_had_is_listed_and_ends_with_3(made: Made, tmp_path: Path) -> None:
    lonely = unreachable(made, tmp_path)
    code, report = verify(lonely, "--offline")
    assert (code, report["findings"], report["without_source"]) == (3, [], ["clock v2", "greeter v1"])
    assert report["not_checked"][0] == {
        "what": "clock v2 from git",
        "stack": "clock/v2",
        "tried": [[f"cache {lonely.cache}", "not there"], ["https://example.org/clock.git", "the run is offline"]],
    }
    assert verify(lonely, "--offline", "--skip-unavailable")[0] == 0
    text = lonely.patchctl("verify", "--offline").stdout
    assert (
        f"not checked: greeter v1 from git: cache {lonely.cache} (not there); https://example.org/greeter.git (the run is offline)"
        in text
    )
    for form in ("gitlab", "sarif"):  # which have no place for it
        assert "not checked: clock v2 from git" in lonely.patchctl("verify", "--offline", "--format", form).stderr


def test_what_needs_no_source_is_found_without_one(made: Made, tmp_path: Path) -> None:
    made.edit("patches/greeter/v1/polite/files/greeter/manners.py", "return text", "return nobody")
    code, report = verify(unreachable(made, tmp_path), "--offline")
    assert (code, rules(report)) == (1, {"lock", "undefined-name"})


def test_static_leaves_sources_alone_and_says_so(made: Made) -> None:
    code, report = verify(made, "--static")
    assert (code, report["findings"]) == (0, [])
    assert [n["what"] for n in report["not_checked"]] == ["trees of clock v2", "trees of greeter v1"]


def test_a_mirror_is_a_source(made: Made, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(made.origins, tmp_path / "mirrors ü"))
    made.edit("manifests/upstreams.yaml", f"{made.origins.as_uri()}/greeter", "file:///nowhere/greeter")
    lonely = replace(made, cache=tmp_path / "cache")
    assert verify(lonely)[0] == 3
    assert verify(lonely, "--mirror", f"greeter={moved / 'greeter'}")[0] == 0


def test_a_changed_file_in_the_cache_ends_with_3(made: Made, tmp_path: Path) -> None:
    own = replace(made, cache=Path(shutil.copytree(made.cache, tmp_path / "cache")))
    shutil.rmtree(own.cache / "stacks")
    for pack in own.cache.glob("git/greeter/*.git/objects/pack/*.pack"):
        pack.chmod(0o644)
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 0xFF
        pack.write_bytes(data)
    done = own.patchctl("verify")
    assert done.returncode == 3
    assert "object" in done.stderr


HOSTILE = "::error file=x::]]>\x1b[31m\n::warning::%0A,x.patch"


def hostile(made: Made) -> Made:
    (made.root / "patches" / "greeter" / "v1" / HOSTILE).write_text("")
    made.edit(made.patch("typo"), "Upstream-Status: Pending", "Upstream-Status: ]]>::error::%0A\x1b[31m\x85")
    return made


def test_hostile_text_begins_no_line_and_steers_no_terminal(made: Made) -> None:
    hostile(made)
    for output in ("text", "json", "github", "gitlab", "sarif", "junit"):
        done = made.patchctl("verify", "--format", output)
        assert done.returncode == 1
        assert not set("\x1b\x85\x9b\r") & set(done.stdout)
        if output != "github":
            assert not [line for line in done.stdout.splitlines() if line.lstrip().startswith(("::", "##["))]


def test_github_annotations(made: Made) -> None:
    text = hostile(made).patchctl("verify", "--format", "github").stdout
    formats.github(text)
    lines = text.splitlines()
    report = verify(made)[1]
    assert len(lines) == len(report["findings"])
    assert all(line.startswith("::error file=") for line in lines)
    (one,) = [line for line in lines if "unlisted-file" in line]
    place, message = one[2:].split("::", 1)
    assert "%3A%3Aerror file=x%3A%3A]]>" in place and "%250A%2Cx.patch" in place
    assert message == "no stack lists it: delete it, or name it in a manifest"
    status = next(line for line in lines if "title=status-form" in line)
    assert f"file={TYPO},line=14,title=status-form::" in status
    below = {"GITHUB_WORKSPACE": str(made.root.parent)}  # the distribution is a folder of the repository
    assert (
        f"::error file={made.root.name}/{TYPO},line=14,"
        in made.patchctl("verify", "--format", "github", env=below).stdout
    )
    path = json.loads(made.patchctl("verify", "--format", "gitlab", env=below).stdout)[0]["location"]["path"]
    assert path.startswith(f"{made.root.name}/")


def test_sarif(made: Made) -> None:
    text = hostile(made).patchctl("verify", "--format", "sarif").stdout
    formats.sarif(text)
    run = json.loads(text)["runs"][0]
    known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} == known
    assert all(rule["shortDescription"]["text"] and rule["help"]["text"] for rule in run["tool"]["driver"]["rules"])
    place = next(r for r in run["results"] if r["ruleId"] == "status-form")["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": TYPO, "uriBaseId": "ROOT"}, "region": {"startLine": 14}}


def test_junit(made: Made, tmp_path: Path) -> None:
    lonely = unreachable(hostile(made), tmp_path)
    text = lonely.patchctl("verify", "--offline", "--format", "junit").stdout
    formats.junit(text)
    suite = ElementTree.fromstring(text)[0]
    failures = [case for case in suite if case.find("failure") is not None]
    assert len(failures) == int(suite.get("failures", "")) == len(verify(lonely, "--offline")[1]["findings"])
    assert int(suite.get("skipped", "")) == 2
    assert any(HOSTILE.partition("\x1b")[0] in case.get("name", "") for case in failures)


def test_the_upstream_moved_on_and_the_pin_did_not(made: Made, tmp_path: Path) -> None:
    origins = Path(shutil.copytree(made.origins, tmp_path / "origins"))
    write_files(origins / "clock", {"clock/tick.py": "TIME = 1\n"})
    git(origins / "clock", "commit", "--quiet", "-am", "later")
    lonely = replace(made, cache=tmp_path / "cache")
    assert verify(lonely, "--mirror", f"clock={origins / 'clock'}")[0] == 0


def test_a_distribution_without_pages_schemas_and_readme(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, [replace(CLOCK, patches=[])], lock=True)
    assert verify(made)[0] == 0


def test_no_distribution_is_wrong_use(made: Made, tmp_path: Path) -> None:
    assert replace(made, root=tmp_path).patchctl("verify").returncode == 2


@pytest.fixture(scope="module")
def both_forms(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """greeter from git and as a source distribution, which lacks the file that a fourth patch changes."""
    more = Patch("runner", {"run.sh": "#!/bin/sh\nexec greeter\n"}, "run: start the greeter", requires="typo")
    held = [name for name in GREETER.files if name != "run.sh"]
    greeter = replace(GREETER, patches=[*GREETER.patches, more], sdist=held)
    return make_distribution(tmp_path_factory.mktemp("both"), [greeter], lock=True)


def test_every_form_is_checked(both_forms: Made) -> None:
    code, report = verify(both_forms)
    assert (code, report["findings"], report["not_checked"]) == (0, [], [])
    assert (report["checked"]["git trees"], report["checked"]["sdist trees"]) == (1, 1)


def test_what_a_source_distribution_lacks_is_listed(both_forms: Made, tmp_path: Path) -> None:
    lonely = replace(both_forms, cache=tmp_path / "cache")
    code, report = verify(lonely, "--source", "sdist")
    assert (code, report["findings"]) == (0, [])
    assert [n["what"] for n in report["not_checked"]] == ["greeter v1 from git", "runner of greeter v1"]
    assert report["checked"]["sdist trees"] == 1
    assert report["not_checked"][0]["tried"] == [["--source", "another form was asked for"]]


def test_a_source_distribution_with_another_digest_ends_with_3(both_forms: Made, tmp_path: Path) -> None:
    index = Path(shutil.copytree(both_forms.index, tmp_path / "index"))
    (index / "greeter-1.0.tar.gz").write_bytes(b"something else")
    lonely = replace(both_forms, cache=tmp_path / "cache")
    done = lonely.patchctl("verify", "--source", "sdist", env={"PIP_FIND_LINKS": str(index)})
    assert done.returncode == 3


def test_a_lock_that_promises_another_tree_for_one_form(both_forms: Made, tmp_path: Path) -> None:
    made = replace(both_forms, root=Path(shutil.copytree(both_forms.root, tmp_path / "distribution")))
    change_lock(made, lambda lock: lock["results"][0]["forms"]["sdist"].update(tip_tree="0" * 40))
    code, report = verify(made)
    assert (code, [f["message"] for f in report["findings"]]) == (
        1,
        ["computed anew from git and sdist: the result in form sdist changed"],
    )


def test_a_patch_without_test_or_mutation_is_found(own: Made) -> None:
    """Only where the distribution keeps tests at all."""

    def lacking() -> set[tuple[str, str]]:
        report = json.loads(own.patchctl("verify", "--static", "--json").stdout)
        return {(f["patch"], f["message"].split(";")[0]) for f in report["findings"] if f["rule"] == "tested"}

    assert lacking() == set()
    stack = "patches/greeter/v1"
    write_files(
        own.root,
        {
            f"{stack}/typo/tests/test_typo.py": "",
            f"{stack}/typo/mutants/typo.yaml": "",
            f"{stack}/polite/tests/test_polite_form.py": "",
            f"{stack}/loud/tests/probe_loud.py": "",
            f"{stack}/loud/mutants/loud.part.yaml": "",
        },
    )
    no_test, no_mutation = "has no behaviour test", "has no mutation"
    assert lacking() == {("polite", no_mutation), ("loud", no_test), ("step", no_test), ("step", no_mutation)}


def test_every_feature_stands_alone(tmp_path: Path) -> None:
    """A line of another feature's that one builds on, and a module that another carries, have to be required."""
    typo, polite, loud = GREETER.patches
    polite = replace(polite, requires="typo")
    made = make_distribution(tmp_path / "fits", (replace(GREETER, patches=(typo, polite, loud)),), lock=True)
    report = json.loads(made.good("verify", "--alone", "--json"))
    assert not [f for f in report["findings"] if f["rule"] == "alone"]
    behind = polite.edits["greeter/hello.py"]
    assert behind is not None
    above = behind.replace(
        "        text = polite(text)\n", "        text = polite(text)\n        text = text.strip()\n"
    )
    assert above != behind
    after = {
        "greeter/hello.py": above,
        "greeter/more.py": "from greeter.manners import polite\n\n__all__ = ['polite']\n",
    }
    more = replace(loud, feature="more", edits=after, requires="typo")
    made = make_distribution(tmp_path / "built", (replace(GREETER, patches=(typo, polite, more)),))
    made.edit("manifests/profiles/plain.yaml", "without: [polite]\n", "")
    done = made.patchctl("verify", "--alone", "--json")
    found = [f for f in json.loads(done.stdout)["findings"] if f["rule"] == "alone"]
    assert done.returncode == 1 and [f["file"].rpartition("-")[2] for f in found] == ["more.patch"] * 2
    said = sorted(f["message"] for f in found)
    assert said[0].startswith("greeter/more.py:1 uses greeter.manners.polite of polite, which it does not require")
    assert said[1].startswith("more builds on lines of a feature that is left out, in greeter/hello.py")
    assert made.patchctl("verify", "--alone", "--static").returncode == 2


# Rules that do not hold for imported patches


def blanks(made: Made, *, imported: bool) -> None:
    """A line of `polite` that ends with a blank, as other projects have them."""
    patch = made.patch("polite")
    text = patch.read_text().replace("+        text = polite(text)\n", "+        text = polite(text) \n")
    if imported:
        text = text.replace("Drop-When:", "Imported: 0001-polite.patch\nDrop-When:")
    patch.write_text(text)


def unlinted(made: Made, rule: str) -> list[dict[str, Any]]:
    """What `verify` says of form and of `unlinted:`, where the stack names this rule."""
    with (made.root / STACK).open("a") as manifest:
        manifest.write(f"unlinted:\n  {rule}: These patches are kept as their project has them.\n")
    found = verify(made, "--static")[1]["findings"]
    return [f for f in found if f["rule"] in ("no-trailing-blanks", "unlinted")]


def test_a_rule_that_a_stack_names_does_not_hold_for_what_was_imported(made: Made) -> None:
    blanks(made, imported=True)
    (note,) = unlinted(made, "no-trailing-blanks")
    assert (note["severity"], note["file"]) == ("note", STACK)
    assert note["message"] == (
        "no-trailing-blanks is not asked of 1 imported patch: These patches are kept as their project has them."
    )


def test_it_holds_for_patches_of_ones_own(made: Made) -> None:
    blanks(made, imported=False)
    own, idle = sorted(unlinted(made, "no-trailing-blanks"), key=lambda f: str(f["rule"]))
    assert own["rule"] == "no-trailing-blanks" and own["severity"] == "error"
    assert idle["message"].startswith("no imported patch of this stack breaks no-trailing-blanks")


def test_a_rule_that_is_none_of_one_patch_file(made: Made) -> None:
    (finding,) = unlinted(made, "no-trailing-blank")
    assert finding["severity"] == "error" and "did you mean 'no-trailing-blanks'?" in finding["message"]
    (made.root / STACK).write_text((made.root / STACK).read_text().replace("no-trailing-blank:", "lock:"))
    assert "is no rule about one patch file" in verify(made, "--static")[1]["findings"][0]["message"]
