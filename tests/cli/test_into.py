"""`apply --in-place NAME=DIR`: an existing checkout or an installed package is patched in place, and given back as it was."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from distribution import GREETER, Made, Patch, git, make_distribution, patch_text, write_files
from on_disk import Snapshot, Workspace, leftovers, snapshot

GENERATED = 'generated:\n  - path: greeter/_version.py\n    content: "version = 1\\n"\n    why: greeter asks for it\n'


@pytest.fixture
def checkout(small: Made, tmp_path: Path) -> Path:
    """A clone of greeter at its pin, with a branch, a staged file and a configuration of its owner's."""
    folder = tmp_path / "a checkout" / "grüße"
    git(tmp_path, "clone", "--quiet", str(small.origins / "greeter"), str(folder))
    git(folder, "branch", "mine")
    (folder / "staged.txt").write_text("staged\n")
    git(folder, "add", "staged.txt")
    git(folder, "config", "core.someSetting", "kept")
    return folder


def apply_into(ws: Workspace, folder: Path, profile: str = "full", *args: str) -> str:
    return ws.apply(profile, "--in-place", f"greeter={folder}", *args)


def owners(folder: Path) -> Snapshot:
    """What of a checkout is its owner's alone: everything of its repository but objects and our references."""
    found = snapshot(folder / ".git")
    return {p: s for p, s in found.items() if not p.startswith(("objects", "refs/patchctl"))}


def files_of(folder: Path) -> Snapshot:
    return {p: s for p, s in snapshot(folder).items() if p.split("/")[0] != ".git"}


def test_a_checkout_is_patched_and_stays_its_owners(ws: Workspace, checkout: Path) -> None:
    before, files = owners(checkout), files_of(checkout)
    apply_into(ws, checkout)
    assert owners(checkout) == before
    assert "LOUD" in (checkout / "greeter/hello.py").read_text()
    assert not (ws.folder / "greeter").exists() and (ws.folder / "clock").is_dir()
    log = git(checkout, "log", "--format=%s", "refs/patchctl/tip").splitlines()
    assert log == [p.subject for p in reversed(GREETER.patches)] + ["the pin"]
    assert git(checkout, "rev-parse", "refs/patchctl/base") == git(checkout, "rev-parse", "HEAD")
    assert git(checkout, "fsck", "--full", "--no-dangling") == ""
    status = ws.json("status")
    assert [(t["kind"], t["folder"]) for t in status["trees"]] == [
        ("managed", str(ws.folder / "clock")),
        ("into", str(checkout)),
    ]
    ws.good("revert")
    assert (owners(checkout), files_of(checkout)) == (before, files)
    assert not (checkout / ".git/refs/patchctl").exists()
    assert list(ws.state["trees"]) == ["clock"] and leftovers(ws.folder) == [] and leftovers(checkout) == []


def test_the_owners_git_says_what_changed(ws: Workspace, checkout: Path) -> None:
    apply_into(ws, checkout)
    assert git(checkout, "status", "--porcelain").splitlines() == [
        " M greeter/hello.py",
        "A  staged.txt",
        "?? greeter/manners.py",
    ]
    assert git(checkout, "rev-parse", "--abbrev-ref", "HEAD").strip() == "main"


def test_a_plain_folder(ws: Workspace, small: Made, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(small.origins / "greeter", folder, ignore=shutil.ignore_patterns(".git"))
    before = snapshot(folder)
    apply_into(ws, folder)
    assert "LOUD" in (folder / "greeter/hello.py").read_text() and not (folder / ".git").exists()
    apply_into(ws, folder, "plain")
    assert "LOUD" not in (folder / "greeter/hello.py").read_text()
    assert ws.apply("full").count("applied") == 1  # the folder is remembered
    ws.good("revert")
    assert snapshot(folder) == before


def test_a_wheel_that_has_a_part_of_the_files(ws: Workspace, small: Made, tmp_path: Path) -> None:
    """site-packages: no README, no run.sh, other packages beside it, and modes that a wheel has."""
    site = tmp_path / "venv/lib/python3.11/site-packages"
    shutil.copytree(small.origins / "greeter/greeter", site / "greeter")
    write_files(site, {"other/__init__.py": "x = 1\n", "greeter-1.dist-info/RECORD": "greeter/hello.py,,\n"})
    (site / "greeter/hello.py").chmod(0o775)
    before = snapshot(site)
    apply_into(ws, site)
    assert "LOUD" in (site / "greeter/hello.py").read_text()
    assert (site / "greeter/hello.py").stat().st_mode & 0o777 == 0o775
    assert not (site / "README.md").exists() and not (site / "run.sh").exists()
    assert ws.json("status")["clean"] is True
    ws.good("revert")
    assert snapshot(site) == before


def test_edits_in_a_wheel_are_kept_and_nothing_is_added(ws: Workspace, small: Made, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    shutil.copytree(small.origins / "greeter/greeter", site / "greeter")
    before = snapshot(site)
    apply_into(ws, site)
    (site / "greeter/hello.py").write_text("edited = True\n")
    assert str(site / "greeter/hello.py") in ws.refused(5, "revert")
    kept = ws.json("revert", "--stash")["stashed"]["greeter"]
    branch, _, repository = kept.partition(" of ")
    assert git(Path(repository), "show", f"{branch}:greeter/hello.py") == "edited = True\n"
    assert snapshot(site) == before


def test_hard_links_keep_their_content(ws: Workspace, checkout: Path, tmp_path: Path) -> None:
    cache = tmp_path / "uv-cache.py"
    os.link(checkout / "greeter/hello.py", cache)
    before = cache.read_bytes()
    apply_into(ws, checkout)
    assert cache.read_bytes() == before
    assert (checkout / "greeter/hello.py").stat().st_ino != cache.stat().st_ino


def test_executable_bits(ws: Workspace, checkout: Path) -> None:
    for file in checkout.rglob("*.py"):
        file.chmod(0o777)  # a bind mount from a file system that has no modes
    before = files_of(checkout)
    apply_into(ws, checkout)
    assert (checkout / "greeter/hello.py").stat().st_mode & 0o777 == 0o777
    ws.good("revert")
    assert files_of(checkout) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user(ws: Workspace, checkout: Path) -> None:
    for path in (checkout, *checkout.rglob("*")):
        os.lchown(path, 1234, 2345)
    apply_into(ws, checkout)
    for path in (p for p in checkout.rglob("*") if ".git" not in p.parts):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (1234, 2345), path
    ws.good("revert")


def test_a_linked_worktree(ws: Workspace, checkout: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(checkout, "worktree", "add", "--quiet", str(linked), "mine")
    head, index = git(linked, "symbolic-ref", "HEAD"), git(linked, "ls-files", "--stage")
    apply_into(ws, linked)
    assert "LOUD" in (linked / "greeter/hello.py").read_text()
    assert git(linked, "log", "--oneline", "refs/patchctl/tip").count("\n") == 4
    assert (git(linked, "symbolic-ref", "HEAD"), git(linked, "ls-files", "--stage")) == (head, index)
    assert "LOUD" not in (checkout / "greeter/hello.py").read_text()
    ws.good("revert")
    assert git(checkout, "for-each-ref", "refs/patchctl") == "" and git(linked, "status", "--porcelain") == ""


def test_a_submodule(ws: Workspace, small: Made, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    git(tmp_path, "init", "--quiet", str(outer))
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(small.origins / "greeter"), "sub")
    assert (outer / "sub/.git").is_file()
    apply_into(ws, outer / "sub")
    assert git(outer / "sub", "log", "-1", "--format=%s", "refs/patchctl/tip") == "hello: repeat a shout\n"
    ws.good("revert")
    assert git(outer / "sub", "status", "--porcelain") == ""


def test_inside_another_repository(ws: Workspace, small: Made, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    git(tmp_path, "init", "--quiet", str(outer))
    shutil.copytree(small.origins / "greeter", outer / "third_party/greeter", ignore=shutil.ignore_patterns(".git"))
    git(outer, "add", "--all")
    git(outer, "commit", "--quiet", "-m", "outer")
    before = owners(outer)
    apply_into(ws, outer / "third_party/greeter")
    assert owners(outer) == before and git(outer, "for-each-ref", "refs/patchctl") == ""
    ws.good("revert")
    assert git(outer, "status", "--porcelain") == ""


def test_not_at_the_pin(ws: Workspace, checkout: Path) -> None:
    (checkout / "README.md").write_text("another version\n")
    before = snapshot(checkout)
    message = ws.refused(5, "apply", "--profile", "full", "--in-place", f"greeter={checkout}")
    assert str(checkout / "README.md") in message and "is not greeter at the pin: 1 file differs" in message
    assert f"patchctl identify {shlex.quote(str(checkout))}" in message
    assert snapshot(checkout) == before and not ws.trees()
    dry = ws.refused(5, "apply", "--profile", "full", "--dry-run", "--in-place", f"greeter={checkout}")
    assert "is not greeter at the pin" in dry


def test_a_folder_with_nothing_of_it(ws: Workspace, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    message = ws.refused(5, "apply", "--profile", "full", "--in-place", f"greeter={tmp_path / 'empty'}")
    assert "is not greeter at the pin" in message
    assert "there is no folder" in ws.refused(
        2, "apply", "--profile", "full", "--in-place", f"greeter={tmp_path / 'no'}"
    )
    assert "--in-place nobody" in ws.refused(2, "apply", "--profile", "full", "--in-place", f"nobody={tmp_path}")


def test_a_file_in_the_way(ws: Workspace, checkout: Path) -> None:
    (checkout / "greeter/manners.py").write_text("mine\n")
    before = snapshot(checkout)
    message = ws.refused(5, "apply", "--profile", "full", "--in-place", f"greeter={checkout}")
    assert str(checkout / "greeter/manners.py") in message
    assert snapshot(checkout) == before


def test_an_edit_after_apply_stops_and_is_kept(ws: Workspace, checkout: Path) -> None:
    apply_into(ws, checkout)
    (checkout / "run.sh").write_text("#!/bin/sh\necho mine\n")  # no patch touches it
    for verb in (("revert",), ("apply", "--profile", "plain")):
        assert str(checkout / "run.sh") in ws.refused(5, *verb)
    out = ws.good("apply", "--profile", "plain", "--stash")
    line = next(line for line in out.splitlines() if "kept on branch" in line)
    branch, _, repository = line.partition("kept on branch ")[2].partition(" of ")
    assert git(Path(repository), "show", f"{branch}:run.sh") == "#!/bin/sh\necho mine\n"
    ws.good("revert")
    kept = list((ws.folder / ".patchctl/kept").glob("greeter-*.git"))
    assert len(kept) == 1 and git(kept[0], "show", f"{branch}:run.sh") == "#!/bin/sh\necho mine\n"
    assert git(checkout, "status", "--porcelain") == "A  staged.txt\n"


def test_generated_files_of_the_owner_stay(own_ws: Workspace, checkout: Path) -> None:
    stack = own_ws.made.root / "manifests/stacks/greeter/v1.yaml"
    stack.write_text(stack.read_text() + GENERATED)
    file = checkout / "greeter/_version.py"
    for text in ("version = 1\n", "version = 'the owner built it'\n"):
        file.write_text(text)
        apply_into(own_ws, checkout)
        assert file.read_text() == text
        own_ws.good("verify")
        own_ws.good("revert")
        assert file.read_text() == text
    apply_into(own_ws, checkout)
    file.unlink()
    assert "the owner's, is missing" in own_ws.run("verify").stdout
    own_ws.good("revert")
    file.write_text("version = 1\n")
    file.unlink()
    apply_into(own_ws, checkout)
    assert file.read_text() == "version = 1\n"
    own_ws.good("revert")
    assert not file.exists()


def test_one_name_one_place(ws: Workspace, checkout: Path, tmp_path: Path) -> None:
    apply_into(ws, checkout)
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(ws.made.origins / "greeter"), str(other))
    message = ws.refused(2, "apply", "--profile", "full", "--in-place", f"greeter={other}")
    assert "is applied to" in message and str(checkout) in message


def test_a_checkout_is_not_carried_to_another_pin(own_ws: Workspace, checkout: Path) -> None:
    apply_into(own_ws, checkout)
    origin = own_ws.made.origins / "greeter"
    made = own_ws.made
    clone = checkout.parent / "next"
    git(checkout.parent, "clone", "--quiet", str(origin), str(clone))
    write_files(clone, {"README.md": "the next pin\n"})
    git(clone, "commit", "--quiet", "-am", "the next pin")
    pins = (git(clone, "rev-parse", "HEAD").strip(), git(clone, "rev-parse", "HEAD^{tree}").strip())
    file = made.root / "manifests/stacks/greeter/v1.yaml"
    old = (git(checkout, "rev-parse", "HEAD").strip(), git(checkout, "rev-parse", "HEAD^{tree}").strip())
    text = file.read_text().replace(old[0], pins[0]).replace(old[1], pins[1])
    file.write_text(text)
    made.good("lock", "--mirror", f"greeter={clone}")
    before = snapshot(checkout)
    message = own_ws.refused(2, "apply", "--profile", "full", "--mirror", f"greeter={clone}")
    assert "revert, bring the checkout to that revision" in message
    assert snapshot(checkout) == before


def test_a_checkout_that_is_gone_does_not_stop_a_revert(ws: Workspace, checkout: Path) -> None:
    apply_into(ws, checkout)
    shutil.rmtree(checkout)
    assert ws.run("status").returncode == 1
    ws.good("revert")
    assert list(ws.state["trees"]) == ["clock"]


def test_a_checkout_that_is_gone_does_not_stop_another_profile(own_ws: Workspace, checkout: Path) -> None:
    profile = "schema: 1\nname: single\nsummary: Only clock.\nstacks:\n  clock: v2\nwithout: [step]\n"
    (own_ws.made.root / "manifests/profiles/single.yaml").write_text(profile)
    apply_into(own_ws, checkout)
    shutil.rmtree(checkout)
    assert "there is no folder" in own_ws.refused(2, "apply", "--profile", "full")
    own_ws.apply("single")
    assert list(own_ws.state["trees"]) == ["clock"]


def test_its_own_repository_serves_as_the_source(own: Made, checkout: Path, tmp_path: Path) -> None:
    shutil.rmtree(own.cache / "git" / "greeter")
    upstreams = own.root / "manifests/upstreams.yaml"
    upstreams.write_text(upstreams.read_text().replace("/origins/greeter", "/origins/gone"))
    ws = Workspace(own, tmp_path / "ws")
    apply_into(ws, checkout)
    assert "LOUD" in (checkout / "greeter/hello.py").read_text()


def test_hostile_settings_of_a_checkout_do_not_run(ws: Workspace, checkout: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    script = tmp_path / "hook"
    script.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    script.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.pager",
        "diff.external",
        "core.sshCommand",
        "filter.x.clean",
        "filter.x.smudge",
    ):
        git(checkout, "config", key, str(script))
    (checkout / ".git/info/attributes").write_text("* filter=x\n")
    (checkout / ".git/hooks").mkdir(exist_ok=True)
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "pre-commit"):
        shutil.copy(script, checkout / ".git/hooks" / hook)
    apply_into(ws, checkout)
    ws.json("status")
    ws.good("revert")
    assert not mark.exists()


def test_a_killed_run_into_a_checkout(ws: Workspace, checkout: Path) -> None:
    """Right after the state was written, and before our own repository of a forgotten checkout went away."""
    before, files = owners(checkout), files_of(checkout)
    apply_into(ws, checkout)
    kept = ws.folder / ".patchctl/into/greeter.git"
    copy = ws.folder.parent / "copy.git"
    shutil.copytree(kept, copy)
    ws.good("revert")
    shutil.copytree(copy, kept)  # as a kill would have left it
    (kept / "index").unlink()
    apply_into(ws, checkout)
    assert "LOUD" in (checkout / "greeter/hello.py").read_text()
    ws.good("revert")
    assert (owners(checkout), files_of(checkout)) == (before, files)
    assert subprocess.run(["git", "-C", str(checkout), "fsck"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def runnable(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A patch that changes a mode and nothing else, which `Patch` cannot say."""
    made = make_distribution(tmp_path_factory.mktemp("runnable"), (GREETER,))
    series = made.root / "patches/greeter/v1/run"
    series.mkdir()
    lines = patch_text(Patch("run", {}, "README: make it a program"), "diff --git a/README.md b/README.md\n")
    (series / "0004-bugfix-run.patch").write_text(lines + "old mode 100644\nnew mode 100755\n")
    stack = made.root / "manifests/stacks/greeter/v1.yaml"
    stack.write_text(stack.read_text() + "  - 0004-bugfix-run.patch\n")
    plain = made.root / "manifests/profiles/plain.yaml"
    plain.write_text(plain.read_text().replace("[polite, loud]", "[polite, loud, run]"))
    made.good("lock")
    return made


@pytest.mark.parametrize("own", [0o644, 0o600, 0o777], ids=oct)
def test_a_mode_that_a_patch_changes(runnable: Made, tmp_path: Path, own: int) -> None:
    folder = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", str(runnable.origins / "greeter"), str(folder))
    ws, file = Workspace(runnable, tmp_path / "ws"), folder / "README.md"
    file.chmod(own)
    before = files_of(folder)
    apply_into(ws, folder)
    assert file.stat().st_mode & 0o777 == {0o644: 0o755, 0o600: 0o700, 0o777: 0o777}[own]
    apply_into(ws, folder, "plain")
    assert file.stat().st_mode & 0o777 == own
    apply_into(ws, folder)
    ws.good("revert")
    assert files_of(folder) == before


def test_two_workspaces_take_turns_in_a_tree(ws: Workspace, checkout: Path) -> None:
    holder = os.open(checkout, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    before = files_of(checkout)
    text = ws.refused(6, "apply", "--profile", "full", "--in-place", f"greeter={checkout}")
    assert (
        "a run of another workspace holds this tree" in text and str(checkout) in text and files_of(checkout) == before
    )
    os.close(holder)
    apply_into(ws, checkout)
    holder = os.open(checkout, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert "holds this tree" in ws.refused(6, "revert")
    os.close(holder)
    ws.good("revert")
    assert files_of(checkout) == before
