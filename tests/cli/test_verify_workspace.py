"""`patchctl verify --workspace` as a user runs it: a good workspace, then one fault a case. Nothing is ever written."""

from __future__ import annotations

import json
import marshal
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from distribution import REPO, Made, git, make_distribution, run_patchctl, write_files
from on_disk import folder_for_all

GENERATED = 'generated:\n  - path: greeter/_version.py\n    content: "version = 1\\n"\n    why: greeter asks for it\n'


@dataclass(frozen=True)
class Place:
    """A distribution, and a workspace that its profile `full` was applied to."""

    made: Made
    workspace: Path

    def verify(self, *args: str) -> tuple[int, dict[str, Any]]:
        done = self.made.patchctl("verify", "--workspace", str(self.workspace), "--json", *args)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def apply(self, profile: str, *args: str) -> None:
        self.made.good("apply", "--profile", profile, "--workspace", str(self.workspace), *args)

    def unclean(self, text: str) -> bool:
        """Whether `status` finds the fault too, and says this."""
        done = self.made.patchctl("status", "--workspace", str(self.workspace))
        return done.returncode == 1 and text in done.stdout

    def change_state(self, change: Callable[[dict[str, Any]], object]) -> None:
        file = self.workspace / ".patchctl" / "state.json"
        state = json.loads(file.read_text())
        change(state)
        file.write_text(json.dumps(state))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("a workspace ü")
    made = make_distribution(folder)
    stack = made.root / "manifests" / "stacks" / "greeter" / "v1.yaml"
    stack.write_text(stack.read_text() + GENERATED)
    made.good("lock")
    place = Place(made, folder / "workspace")
    place.apply("full")
    return place


@pytest.fixture
def place(original: Place, tmp_path: Path) -> Place:
    """A copy to break; the cache is not there, since nothing of it is needed."""
    root = shutil.copytree(original.made.root, tmp_path / "distribution")
    workspace = shutil.copytree(original.workspace, tmp_path / "workspace", symlinks=True)
    return Place(replace(original.made, root=root, cache=tmp_path / "cache"), workspace)


def rules(report: dict[str, Any]) -> set[str]:
    return {f["rule"] for f in report["findings"]}


def test_a_good_workspace_without_cache(place: Place) -> None:
    code, report = place.verify()
    assert (code, report["findings"], report["not_checked"]) == (0, [], [])
    assert report["checked"] == {"files": 7, "stacks computed again": 2, "trees": 2}


def test_nothing_is_written(place: Place) -> None:
    def seen() -> list[tuple[str, int, int, bytes]]:
        found = (p for top in (place.workspace, place.made.root) for p in top.rglob("*"))
        return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_mode, _bytes(p)) for p in found)

    # An index whose stat data are old is what makes git write: `git status` would refresh it.
    os.utime(place.workspace / "greeter" / "greeter" / "hello.py", (1, 1))
    before = seen()
    assert place.verify()[0] == 0
    assert seen() == before


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_another_profile_and_what_is_left_out_by_choice(place: Place) -> None:
    place.apply("plain")
    code, report = place.verify()
    assert (code, report["findings"], report["not_checked"]) == (0, [], [])
    place.apply("full", "--without", "loud")
    assert place.verify()[0] == 0


def test_without_a_feature_that_no_lock_speaks_of(place: Place) -> None:
    place.apply("full", "--without", "loud")
    place.change_state(lambda s: s["trees"]["greeter"].update(tip_commit=s["trees"]["greeter"]["patches"][0]["commit"]))
    code, report = place.verify()
    assert code == 1
    assert "wrong-tip" in rules(report)


def test_after_revert_the_base_is_expected(place: Place) -> None:
    place.made.good("revert", "--workspace", str(place.workspace))
    assert place.verify()[0] == 0
    write_files(place.workspace / "greeter", {"greeter/hello.py": "text\n"})
    code, report = place.verify()
    assert (code, rules(report)) == (1, {"file-changed"})


def test_an_upstream_that_was_skipped_is_repeated(place: Place, tmp_path: Path) -> None:
    place.made.edit("manifests/upstreams.yaml", (place.made.origins / "greeter").as_uri(), "file:///nowhere")
    lonely = Place(replace(place.made, cache=tmp_path / "empty"), tmp_path / "other workspace")
    lonely.apply("full", "--skip-unavailable")
    code, report = lonely.verify()
    assert (code, report["findings"]) == (0, [])
    assert [n["what"] for n in report["not_checked"]] == [
        "clock: step, which is left out",
        "greeter, which was skipped when it was applied",
    ]
    assert ["/nowhere", "no such folder"] in report["not_checked"][1]["tried"]


def test_an_upstream_of_the_profile_that_is_lacking(place: Place) -> None:
    """It came into the profile since, or the state was changed."""
    place.change_state(lambda s: s["trees"].pop("clock"))
    code, report = place.verify()
    assert (code, report["checked"]["trees"], rules(report)) == (1, 1, {"tree-missing"})
    assert "the state has no tree of it: apply again" in report["findings"][0]["message"]
    assert place.unclean("the profile full names it")


def test_a_tree_that_the_state_calls_skipped(place: Place) -> None:
    skipped = {"upstream": "clock", "tried": [["cache", "not there"]]}
    place.change_state(lambda s: s.update(skipped=[skipped], trees={"greeter": s["trees"]["greeter"]}))
    code, report = place.verify()
    assert (code, rules(report)) == (1, {"tree-missing"})
    assert place.unclean("a tree lies here")


def no_tree(state: dict[str, Any]) -> None:
    """What an apply wrote that could get no source at all."""
    skipped = [{"upstream": name, "tried": [["cache", "not there"]]} for name in state["trees"]]
    state.update(trees={}, skipped=skipped)


def test_a_workspace_without_a_tree_is_a_fault(place: Place) -> None:
    place.change_state(no_tree)
    code, report = place.verify()
    assert (code, rules(report), len(report["not_checked"])) == (1, {"tree-missing"}, 2)
    for args in ((), ("--quiet",), ("--skip-unavailable",)):
        done = place.made.patchctl("verify", "--workspace", str(place.workspace), *args)
        assert done.returncode == 1 and "no tree" in done.stdout
    done = place.made.patchctl("status", "--workspace", str(place.workspace))
    assert done.returncode == 1 and "no tree" in done.stdout
    place.change_state(lambda s: s.update(profile=None, skipped=[]))  # only `--in-place` checkouts, and reverted
    code, report = place.verify()
    assert (code, rules(report)) == (1, {"tree-missing"})


@pytest.mark.parametrize("args", [("--static",), ("--mirror", "clock=/srv/clock"), ("--source", "git")])
def test_options_of_sources_are_wrong_use(place: Place, args: tuple[str, ...]) -> None:
    """A workspace is read back without sources: a job that says otherwise would pass for the wrong reason."""
    done = place.made.patchctl("verify", "--workspace", str(place.workspace), *args)
    assert done.returncode == 2 and args[0] in done.stderr and done.stdout == ""


def test_the_distribution_that_was_applied_is_found_from_the_state(place: Place, tmp_path: Path) -> None:
    place.change_state(lambda s: s.update(root=str(place.made.root)))
    command = ["verify", "--workspace", str(place.workspace), "--json"]
    done = run_patchctl(*command, home=tmp_path / "home")
    assert (done.returncode, json.loads(done.stdout)["checked"]["stacks computed again"]) == (0, 2)
    shutil.rmtree(place.made.root)
    done = run_patchctl(*command, home=tmp_path / "home")
    report = json.loads(done.stdout)
    assert (done.returncode, report["checked"]) == (3, {"files": 7, "trees": 2})
    assert [n["what"] for n in report["not_checked"]] == ["what the trees should be"]
    assert run_patchctl(*command, "--skip-unavailable", home=tmp_path / "home").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be taken on by root only")
@pytest.mark.parametrize(("words", "code"), [("verify", 3), ("status", 0), ("status --labels", 2)])
def test_a_distribution_that_others_may_not_read_is_gone(place: Place, words: str, code: int) -> None:
    """Root's cache, where a bundle's distribution lies, and a health check as another user."""
    with folder_for_all() as top:
        closed = top / "closed"
        root = shutil.copytree(place.made.root, closed / "distribution")
        workspace = shutil.copytree(place.workspace, top / "ws", symlinks=True)
        Place(place.made, workspace).change_state(lambda s: s.update(root=str(root)))
        verb, *more = words.split()
        line = [sys.executable, "-c", AS_NOBODY, verb, "--workspace", str(workspace), *more]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPO), "HOME": "/nonexistent"}
        os.chmod(closed, 0o700)
        done = subprocess.run(line, env=env, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr + done.stdout


def test_a_wrong_variable_is_not_passed_by(place: Place, tmp_path: Path) -> None:
    """The distribution that the workspace was made from is not what was named."""
    for words in (["status", "--labels"], ["status"], ["verify"]):
        line = (*words, "--workspace", str(place.workspace))
        done = run_patchctl(*line, home=tmp_path / "home", env={"PATCHCTL_ROOT": str(tmp_path / "typo")})
        assert done.returncode == 2 and "PATCHCTL_ROOT names" in done.stderr, words


HELLO = "greeter/greeter/hello.py"
# The other user may be unable to read the interpreter's own folders: the first run, as root, imports everything.
AS_NOBODY = """
import os, sys
from patchctl.__main__ import run
for warm_up in ("status", "verify"):
    run([warm_up, *sys.argv[2:]])
import patchctl.terminal.text, patchctl.git.run
patchctl.git.run.scratch_folder.cache_clear()  # that folder is root's
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(run(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Fault:
    name: str
    broken: set[str]
    change: Callable[[Place], object]


def damage_pack(place: Place) -> None:
    for pack in (place.workspace / "greeter" / ".git" / "objects" / "pack").glob("*.pack"):
        pack.chmod(0o644)
        data = bytearray(pack.read_bytes())
        for at in range(20, len(data) - 20, 7):
            data[at] ^= 0xFF
        pack.write_bytes(data)


def interrupt(place: Place) -> None:
    """What is left of a run that was killed after its journal was written."""
    state = json.loads((place.workspace / ".patchctl" / "state.json").read_text())
    journal = {"version": 1, "verb": "apply", "changes": [], "after": state}
    (place.workspace / ".patchctl" / "journal.json").write_text(json.dumps(journal))


def commit_on_top(place: Place) -> None:
    git(place.workspace / "greeter", "commit", "--quiet", "--allow-empty", "-m", "mine")


def forge_base(place: Place) -> None:
    """A state that says there is nothing but the base, over a patched tree."""

    def change(state: dict[str, Any]) -> None:
        tree = state["trees"]["greeter"]
        tree.update(tip_commit=tree["base_commit"], tip_tree=tree["base_tree"], patches=[])

    place.change_state(change)


def forge_left_out(place: Place) -> None:
    """A tree at its base, and a state that says that no patch could be had."""

    def change(state: dict[str, Any]) -> None:
        tree = state["trees"]["greeter"]
        gone = [{"feature": one["feature"], "reason": "not in the sdist"} for one in tree["patches"]]
        tree.update(tip_commit=tree["base_commit"], tip_tree=tree["base_tree"], patches=[], left_out=gone, locked=False)
        git(place.workspace / "greeter", "checkout", "--quiet", "--detach", tree["base_commit"])

    place.change_state(change)


def swap_file_for_link(place: Place) -> None:
    file = place.workspace / HELLO
    copy = file.with_name("copy.py")
    file.rename(copy)
    file.symlink_to("copy.py")
    (place.workspace / "greeter" / ".git" / "info" / "exclude").write_text("copy.py\n_version.py\n")


def second_stack(place: Place) -> None:
    """The old one is still there."""
    stacks = place.made.root / "manifests/stacks/clock"
    shutil.copy(stacks / "v2.yaml", stacks / "v3.yaml")
    place.made.edit(stacks / "v3.yaml", "name: v2", "name: v3")
    place.made.edit("manifests/profiles/full.yaml", "clock: v2", "clock: v3")
    shutil.copytree(place.made.root / "patches/clock/v2", place.made.root / "patches/clock/v3")


def replace_by_link(place: Place) -> None:
    """The link leads to the same bytes today."""
    tree = place.workspace / "greeter"
    tree.rename(place.workspace / "elsewhere")
    tree.symlink_to("elsewhere")


def other_patch(place: Place) -> None:
    place.made.edit(place.made.patch("loud"), "The code does it", "It does it")


FAULTS = (
    Fault("file_changed", {"file-changed"}, lambda p: write_files(p.workspace, {HELLO: "x = 1\n"})),
    Fault("file_missing", {"file-changed"}, lambda p: (p.workspace / HELLO).unlink()),
    Fault("file_became_executable", {"file-changed"}, lambda p: (p.workspace / HELLO).chmod(0o755)),
    Fault("file_became_a_link", {"file-changed", "untracked-file"}, swap_file_for_link),
    Fault(
        "carried_file_changed", {"file-changed"}, lambda p: write_files(p.workspace, {"greeter/greeter/manners.py": ""})
    ),
    Fault(
        "generated_file_changed",
        {"generated-changed"},
        lambda p: write_files(p.workspace, {"greeter/greeter/_version.py": "version = 2\n"}),
    ),
    Fault(
        "generated_file_missing",
        {"generated-changed"},
        lambda p: (p.workspace / "greeter/greeter/_version.py").unlink(),
    ),
    Fault(
        "generated_file_of_another_manifest",
        {"generated-changed"},
        lambda p: p.made.edit("manifests/stacks/greeter/v1.yaml", "version = 1", "version = 3"),
    ),
    Fault("head_moved", {"head-moved"}, commit_on_top),
    Fault("tree_gone", {"tree-missing"}, lambda p: shutil.rmtree(p.workspace / "greeter")),
    Fault("repository_gone", {"tree-missing"}, lambda p: shutil.rmtree(p.workspace / "greeter" / ".git")),
    Fault("repository_damaged", {"repository"}, damage_pack),
    Fault("tree_replaced_by_a_link", {"tree-missing"}, replace_by_link),
    Fault("profile_names_another_stack_since", {"other-stack"}, second_stack),
    Fault(
        "profile_lost_the_upstream_since",
        {"other-stack"},
        lambda p: p.made.edit("manifests/profiles/full.yaml", "  clock: v2\n", ""),
    ),
    Fault("profile_gone_since", {"other-stack"}, lambda p: (p.made.root / "manifests/profiles/full.yaml").unlink()),
    Fault("run_interrupted", {"interrupted"}, interrupt),
    Fault(
        "state_forged_to_the_base",
        {"file-changed", "head-moved", "other-patches", "untracked-file", "wrong-tip"},
        forge_base,
    ),
    Fault("state_forged_to_features_left_out", {"other-patches"}, forge_left_out),
    Fault(
        "state_names_another_tree",
        {"wrong-base", "wrong-tip"},
        lambda p: p.change_state(lambda s: s["trees"]["greeter"].update(tip_tree="0" * 40)),
    ),
    Fault(
        "state_names_another_digest",
        {"other-patches"},
        lambda p: p.change_state(lambda s: s["trees"]["greeter"]["patches"][0].update(digest="0" * 64)),
    ),
    Fault("patch_changed_since", {"other-patches", "wrong-tip"}, other_patch),
    Fault(
        "profile_leaves_out_more_since",
        {"other-patches"},
        lambda p: p.made.edit("manifests/profiles/full.yaml", "summary", "without: [loud]\nsummary"),
    ),
    Fault(
        "pin_moved_since",
        {"wrong-base"},
        lambda p: p.made.edit(
            "manifests/stacks/clock/v2.yaml",
            json.loads((p.workspace / ".patchctl/state.json").read_text())["trees"]["clock"]["base_commit"],
            "0" * 40,
        ),
    ),
    Fault(
        "stack_gone_since",
        {"other-patches", "other-stack"},
        lambda p: p.change_state(lambda s: s["trees"]["clock"].update(stack="v1")),
    ),
    Fault(
        "lock_has_another_tip",
        {"wrong-tip"},
        lambda p: p.made.edit("manifests/locks/clock/v2.json", _clock_tip(p), "0" * 40),
    ),
)


def _clock_tip(place: Place) -> str:
    return str(json.loads((place.workspace / ".patchctl/state.json").read_text())["trees"]["clock"]["tip_commit"])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_one_fault(place: Place, fault: Fault) -> None:
    fault.change(place)
    code, report = place.verify()
    assert rules(report) == fault.broken
    assert code == 1
    if fault.broken <= {"other-stack", "tree-missing"}:
        assert place.unclean("")


def test_the_finding_names_the_file(place: Place) -> None:
    write_files(place.workspace, {HELLO: "x = 1\n"})
    (found,) = place.verify()[1]["findings"]
    assert found["file"] == str(place.workspace / HELLO)
    assert found["upstream"] == "greeter"


def test_a_file_that_is_not_ours_is_a_note(place: Place) -> None:
    write_files(
        place.workspace, {"greeter/greeter/mine.txt": "", "greeter/notes/mine.py": "", "greeter/my-script.py": ""}
    )
    code, report = place.verify()
    assert (code, rules(report)) == (0, {"untracked-file"})


IGNORED = "*.so\n*.pyc\ntorch.py\njson\n_version.py\n"


@pytest.mark.parametrize("name", ["hello/__init__.py", "hello/__init__.pyc", "hello.abi3.so", "__init__.so"])
def test_what_python_imports_in_place_of_a_module_is_a_fault(place: Place, name: str) -> None:
    """Packages and extensions are found before modules, ignored by git or not."""
    (place.workspace / "greeter" / ".git" / "info" / "exclude").write_text(IGNORED)
    write_files(place.workspace, {f"greeter/greeter/{name}": "EVIL = 1\n"})
    code, report = place.verify()
    (found,) = report["findings"]
    assert (code, found["rule"], found["severity"]) == (1, "untracked-file", "error")
    assert found["file"] == str(place.workspace / "greeter/greeter" / name) and "in place of" in found["message"]


@pytest.mark.parametrize(
    "name",
    [
        "torch.py",
        "json/__init__.py",
        "sitecustomize.py",
        "usercustomize.pyc",
        "conftest.py",
        "greeter/mine.py",
        "greeter/mine.pyc",
        "greeter/mine/__init__.abi3.so",
    ],
)
def test_a_module_beside_those_of_the_stack_is_a_fault(place: Place, name: str) -> None:
    """The top of a tree is on Python's path, before the standard library and all packages where PYTHONPATH has it."""
    (place.workspace / "greeter" / ".git" / "info" / "exclude").write_text(IGNORED)
    write_files(place.workspace, {f"greeter/{name}": "EVIL = 1\n"})
    code, report = place.verify()
    (found,) = report["findings"]
    assert (code, found["rule"], found["severity"]) == (1, "untracked-file", "error")
    assert found["file"] == str(place.workspace / "greeter" / name) and "can import it" in found["message"]


def test_what_stands_behind_a_module_and_what_a_build_leaves_is_no_fault(place: Place) -> None:
    left = (
        "greeter/hello/data.py",
        "greeter/other.abi3.so",
        "build/lib/greeter/__init__.py",
        "greeter.egg-info/PKG-INFO",
    )
    write_files(place.workspace, {f"greeter/{name}": "" for name in left})
    assert place.verify()[0] == 0


def compiled(place: Place, mode: py_compile.PycInvalidationMode = py_compile.PycInvalidationMode.TIMESTAMP) -> Path:
    return Path(py_compile.compile(str(place.workspace / HELLO), invalidation_mode=mode) or "")


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_byte_code_of_another_source_is_a_fault(
    place: Place, mode: py_compile.PycInvalidationMode, tmp_path: Path
) -> None:
    """Its header says that it belongs to the file of the stack: Python runs it."""
    file = compiled(place, mode)
    code, report = place.verify()
    assert (code, report["findings"]) == (0, [])
    evil = compile("EVIL = 1\n", str(place.workspace / HELLO), "exec")
    file.write_bytes(file.read_bytes()[:16] + marshal.dumps(evil))
    ran = subprocess.run(
        [sys.executable, "-c", "import greeter.hello; print(greeter.hello.EVIL)"],
        cwd=place.workspace / "greeter",
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "1\n", ran.stderr
    code, report = place.verify()
    assert (code, rules(report)) == (1, {"byte-code"})
    assert report["findings"][0]["file"] == str(file)


@pytest.mark.parametrize("key", ["patches", "left_out", "generated", "without", "skipped"])
def test_a_state_that_lacks_a_list_is_no_state(place: Place, key: str) -> None:
    """It is not one in which the list is empty: sbom would attest a tree without patches."""
    place.change_state(lambda s: (s if key in s else s["trees"]["greeter"]).pop(key))
    for verb in ("status", "verify"):
        done = place.made.patchctl(verb, "--workspace", str(place.workspace))
        assert done.returncode == 2 and f"{key!r} is missing" in done.stderr


def test_a_state_with_a_key_of_a_newer_version_is_read(place: Place) -> None:
    def change(state: dict[str, Any]) -> None:
        for one in (state, state["trees"]["greeter"]):
            one["newer"] = 1

    place.change_state(change)
    assert place.verify()[0] == 0


def test_byte_code_of_a_generated_module_is_looked_at(place: Place) -> None:
    file = place.workspace / "greeter/greeter/_version.py"
    made = Path(py_compile.compile(str(file)) or "")
    assert place.verify()[0] == 0
    made.write_bytes(made.read_bytes()[:16] + marshal.dumps(compile("EVIL = 1\n", str(file), "exec")))
    assert rules(place.verify()[1]) == {"byte-code"}


def test_a_package_of_another_tree_in_a_namespace_is_a_fault(place: Place) -> None:
    """A run that starts in this tree takes it: `megatron.core` in verl's. Without `__init__` it hides nothing."""
    place.made.edit("manifests/upstreams.yaml", "{clock: clock}", "{clock.face: clock}")
    (place.workspace / "greeter/clock/face").mkdir(parents=True)
    assert place.verify()[0] == 0
    write_files(place.workspace, {"greeter/clock/face/__init__.py": "EVIL = 1\n"})
    code, report = place.verify()
    (found,) = report["findings"]
    assert (code, found["severity"]) == (1, "error") and "in place of clock.face" in found["message"]


def test_byte_code_that_ends_the_interpreter_is_a_fault(place: Place) -> None:
    file = compiled(place)
    head = file.read_bytes()[:16]
    file.write_bytes(
        head + b"\xa9" * 100_000
    )  # a tuple of 169 million things of which each is one: no more memory or stack
    assert rules(place.verify()[1]) == {"byte-code"}
    file.write_bytes(head + b"\xe3")
    assert rules(place.verify()[1]) == {"byte-code"}


def test_byte_code_that_python_does_not_take_is_no_fault(place: Place) -> None:
    file = compiled(place)
    file.write_bytes(file.read_bytes()[:16] + marshal.dumps(compile("EVIL = 1\n", "x", "exec")))
    os.utime(place.workspace / HELLO, (1, 1))
    assert place.verify()[0] == 0


def test_byte_code_of_another_python_is_not_checked(place: Place) -> None:
    file = compiled(place)
    file.rename(file.with_name("hello.cpython-399.pyc"))
    code, report = place.verify()
    assert (code, report["findings"]) == (0, [])
    assert [one["what"] for one in report["not_checked"]] == ["greeter: byte code of another Python than this"]


def test_a_file_that_git_takes_for_unchanged_is_found(place: Place) -> None:
    """Same size, same times: git's stat cache would not look at it."""
    file = place.workspace / HELLO
    status = file.stat()
    data = file.read_bytes()
    with file.open("r+b") as out:
        out.write(data.replace(b"Hello", b"Hallo"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert rules(place.verify()[1]) == {"file-changed"}


def test_an_into_checkout(place: Place, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", str(place.made.origins / "greeter"), str(checkout))
    into = Place(place.made, tmp_path / "into")
    into.apply("full", "--in-place", f"greeter={checkout}")
    assert into.verify()[0] == 0
    (checkout / "README.md").unlink()  # a wheel has no such file either
    assert into.verify()[0] == 0
    (checkout / "greeter" / "hello.py").unlink()
    code, report = into.verify()
    assert (code, rules(report)) == (1, {"file-changed"})


def test_no_workspace_is_wrong_use(place: Place, tmp_path: Path) -> None:
    done = place.made.patchctl("verify", "--workspace", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert "nothing was applied" in done.stderr
