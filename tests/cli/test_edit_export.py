"""`edit` and `export`: a stack as commits, changed with git, and back as patch files that say the same everywhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from distribution import GIT_ENV, Made, git
from on_disk import Workspace, command, environment, snapshot

from patchctl.check.patch_rules import REQUIRED

TRAILERS = "Switch: env GREETER_{0}=1\nUpstream-Status: Pending\nDrop-When: never\n"


@pytest.fixture
def tree(own: Made, tmp_path: Path) -> Path:
    """greeter's stack, opened."""
    folder = tmp_path / "edit tree"
    own.good("edit", "greeter", "--dir", str(folder))
    return folder


def export(made: Made, tree: Path, *args: str, code: int = 0) -> dict[str, object]:
    done = made.patchctl("export", "greeter", "--dir", str(tree), "--json", *args)
    assert done.returncode == code, done.stderr
    data: dict[str, object] = json.loads(done.stdout)
    return data


def patches(made: Made) -> dict[str, tuple[str, str]]:
    return snapshot(made.root / "patches/greeter/v1")


def rebase(tree: Path, edit_todo: str) -> None:
    """`git rebase -i` with a program as its editor."""
    env = {**GIT_ENV, "GIT_SEQUENCE_EDITOR": edit_todo, "GIT_EDITOR": "true"}
    base = git(tree, "config", "patchctl.base").strip()
    subprocess.run(["git", "-C", str(tree), "rebase", "-q", "-i", base], env=env, check=True, capture_output=True)


def listed(made: Made) -> list[str]:
    lines = (made.root / "manifests/stacks/greeter/v1.yaml").read_text().splitlines()
    return [line.strip()[2:] for line in lines if line.strip().startswith("- 0")]


def test_what_takes_it_over_works_as_it_is_printed(own: Made, tree: Path) -> None:
    """With the stack, of which an upstream may have two, and with the folder where it is not the usual one."""
    again = own.good("edit", "greeter", "--dir", str(tree))
    printed = again.strip().rpartition("then: ")[2]
    assert printed == f"patchctl export greeter/v1 --dir '{tree}'"
    own.good(*shlex.split(printed)[1:], "--check")
    (tree / "greeter" / "hello.py").write_text("# mine\n")
    assert f"`{printed}` takes it over" in own.patchctl("edit", "greeter", "--dir", str(tree)).stderr


def test_the_tree_is_ordinary(own: Made, tree: Path) -> None:
    assert git(tree, "status", "--porcelain", "--branch").strip() == "## patchctl/v1"
    log = git(tree, "log", "--format=%s").splitlines()
    assert log == ["hello: repeat a shout", "hello: add a polite form", "hello: spell the greeting right", "the pin"]
    assert git(tree, "fsck", "--full", "--strict") == ""
    assert not [p for p in tree.parent.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"TZ": "Asia/Kolkata", "LANG": "de_DE.UTF-8"},
        {
            "GIT_DIFF_OPTS": "-u0",
            "GIT_EXTERNAL_DIFF": "/bin/false",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "diff.noprefix",
            "GIT_CONFIG_VALUE_0": "true",
        },
    ],
    ids=["plain", "zone", "git-variables"],
)
def test_unchanged_is_byte_identical(own: Made, tree: Path, env: Mapping[str, str]) -> None:
    config = own.cache.parent / "home" / ".gitconfig"
    config.parent.mkdir(exist_ok=True)
    config.write_text(
        "[diff]\n\talgorithm = histogram\n\tnoprefix = true\n\trenames = copies\n[color]\n\tui = always\n"
        "[core]\n\tabbrev = 4\n\tquotepath = false\n\tautocrlf = true\n[user]\n\tname = E\n\temail = e@e\n[i18n]\n\tlogOutputEncoding = latin1\n"
    )
    for section in ("diff", "color"):  # and in the tree itself
        git(
            tree,
            "config",
            f"{section}.ui" if section == "color" else "diff.algorithm",
            "always" if section == "color" else "patience",
        )
    before = snapshot(own.root)
    done = own.patchctl("export", "greeter", "--dir", str(tree), env=env)
    assert done.returncode == 0 and "nothing differs" in done.stdout, done.stderr
    assert snapshot(own.root) == before
    assert own.patchctl("export", "greeter", "--check", "--dir", str(tree), env=env).returncode == 0


def test_commits_that_were_rewritten_give_the_same_files(own: Made, tree: Path) -> None:
    """Other commit ids, same changes: a rebase onto itself with another committer."""
    before = patches(own)
    env = {**GIT_ENV, "GIT_COMMITTER_NAME": "Another", "GIT_COMMITTER_DATE": "1800000000 +0000"}
    base = git(tree, "config", "patchctl.base").strip()
    subprocess.run(["git", "-C", str(tree), "rebase", "-q", "--force-rebase", base], env=env, check=True)
    export(own, tree)
    assert patches(own) == before


def test_amend_in_the_middle(own: Made, tree: Path) -> None:
    before = patches(own)
    manners = tree / "greeter/manners.py"
    rebase(tree, "sed -i -e '2s/^pick/edit/'")
    manners.write_text(manners.read_text().replace(", please", ", if you please"))
    git(tree, "commit", "--quiet", "-a", "--amend", "--no-edit")
    subprocess.run(
        ["git", "-C", str(tree), "rebase", "--continue"],
        env={**GIT_ENV, "GIT_EDITOR": "true"},
        check=True,
        capture_output=True,
    )
    export(own, tree)
    after = patches(own)
    assert {p for p in after if after[p] != before.get(p)} == {"polite/files/greeter/manners.py"}
    assert own.patchctl("lock", "--check").returncode == 1
    own.good("lock")
    ws = Workspace(own, tree.parent / "ws")
    ws.apply()
    assert "if you please" in (ws.folder / "greeter/greeter/manners.py").read_text()


def commit_new(tree: Path, feature: str, files: Mapping[str, str], trailers: str = TRAILERS) -> None:
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    git(tree, "add", "--all")
    message = f"{feature}: a new thing\n\nNeed: people ask.\n\nIt is there now.\n\nRisk: none that we know.\n\nFeature: {feature}\n"
    git(tree, "commit", "--quiet", "-m", message + trailers.format(feature.upper()))


def test_a_new_commit_becomes_a_patch_with_a_carried_file(own: Made, tree: Path) -> None:
    hello = (tree / "greeter/hello.py").read_text()
    commit_new(tree, "bow", {"greeter/bow.py": "BOW = 1\n", "greeter/hello.py": hello + "\n\nBOWS = True\n"})
    export(own, tree)
    file = own.patch("bow")
    assert file.name == "0004-feature-bow.patch" and listed(own)[-1] == file.name
    text = file.read_text()
    assert "Carries: greeter/bow.py\n" in text and "diff --git a/greeter/bow.py" not in text
    assert (file.parent / "files/greeter/bow.py").read_text() == "BOW = 1\n"
    own.good("lock")
    assert own.patchctl("lock", "--check").returncode == 0
    assert "nothing differs" in own.good("export", "greeter", "--check")
    ws = Workspace(own, tree.parent / "ws")
    ws.apply()
    assert (ws.folder / "greeter/greeter/bow.py").read_text() == "BOW = 1\n"
    assert own.patchctl("verify", "--static").returncode in (0, 1)


@pytest.mark.parametrize("case", ["a carried file", "an author"])
def test_a_patch_that_could_not_be_read_again_is_not_written(own: Made, tree: Path, case: str) -> None:
    """A name that no system may have; an author that `git am` makes."""
    before = snapshot(own.root)
    name = "greeter/aux.py" if case == "a carried file" else "greeter/more.py"
    (tree / name).write_text("x = 1\n")
    git(tree, "add", "--all")
    author = ["--author", "me@home <w@x>"] if case == "an author" else []
    git(
        tree,
        "commit",
        "--quiet",
        *author,
        "-m",
        f"greeter: more\n\nNeed: x\n\nFeature: more\n{TRAILERS.format('MORE')}",
    )
    done = own.patchctl("export", "greeter", "--dir", str(tree))
    assert done.returncode == 2 and "more" in done.stderr, done.stdout + done.stderr
    assert snapshot(own.root) == before
    own.good("lock", "--check", "--skip-unavailable")


def test_a_blank_line_in_the_list_of_patches(own: Made, tree: Path) -> None:
    manifest = own.root / "manifests/stacks/greeter/v1.yaml"
    first, *others = listed(own)
    manifest.write_text(manifest.read_text().replace(f"  - {first}\n", f"  - {first}\n\n"))
    (tree / "greeter/more.py").write_text("x = 1\n")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "-m", f"greeter: more\n\nNeed: x\n\nFeature: more\n{TRAILERS.format('MORE')}")
    export(own, tree)
    assert listed(own)[:-1] == [first, *others] and "more" in listed(own)[-1]
    own.good("lock")


def test_a_work_tree_is_found_from_inside_it(own: Made, tree: Path) -> None:
    """Not one of the same name below, which is not there."""
    git(
        tree,
        "commit",
        "--quiet",
        "--amend",
        "-m",
        git(tree, "log", "-1", "--format=%B").replace("repeat", "repeat loudly"),
    )
    done = subprocess.run(
        command(own, "export", "greeter"),
        cwd=tree / "greeter",
        env=environment(own),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "loud/0003-feature-loud.patch differs" in done.stdout, done.stdout + done.stderr


def test_many_carried_files_keep_to_the_width_of_the_lint(own: Made, tree: Path) -> None:
    commit_new(
        tree, "bow", {"greeter/hello.py": "BOWS = True\n"} | {f"greeter/bow_{n:020}.py": "BOW = 1\n" for n in range(5)}
    )
    export(own, tree)
    assert own.patch("bow").read_text().count("\nCarries: greeter/bow_") == 5
    found = own.patchctl("verify", "--static").stdout
    assert "0004-feature-bow.patch" in found and "body-width" not in found


def test_a_commit_has_the_author_of_the_distribution_whoever_makes_it(own: Made, tree: Path) -> None:
    home = tree.parent / "of somebody"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Somebody\n\temail = somebody@example.com\n")
    (tree / "greeter/hello.py").write_text("BOWS = True\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    message = f"hello: bow\n\nFeature: bow\n{TRAILERS.format('BOW')}"
    subprocess.run(["git", "-C", str(tree), "commit", "-q", "-a", "-m", message], env=environment, check=True)
    export(own, tree)
    assert "From: patchctl <patchctl@localhost>\n" in own.patch("bow").read_text()
    assert "[author]" not in own.patchctl("verify", "--static").stdout


@pytest.mark.parametrize("gone", REQUIRED)
def test_each_trailer_of_a_patch_is_wanted(own: Made, tree: Path, gone: str) -> None:
    """`verify` would refuse the file; who exports is told at once, and nothing is written."""
    before = snapshot(own.root)
    commit_new(tree, "bow", {"greeter/bow.py": "BOW = 1\n"})
    message = git(tree, "log", "-1", "--format=%B")
    kept = "\n".join(line for line in message.splitlines() if not line.startswith(f"{gone}:"))
    git(tree, "commit", "--quiet", "--amend", "-m", kept)
    done = own.patchctl("export", "greeter", "--dir", str(tree))
    assert done.returncode == 2 and f"lacks {gone}" in done.stderr
    assert ", ".join(REQUIRED) in done.stderr
    assert snapshot(own.root) == before


@pytest.mark.parametrize("gone", ["Feature", "Switch"])
def test_every_commit_that_lacks_trailers_is_named_at_once(own: Made, tree: Path, gone: str) -> None:
    """Whoever has brought in ten commits with `git am` learns of all of them in one run."""
    for feature in ("bow", "wave", "nod"):
        trailers = TRAILERS if feature == "wave" else "\n".join(x for x in TRAILERS.split("\n") if gone not in x)
        commit_new(tree, feature, {f"greeter/{feature}.py": "X = 1\n"}, trailers)
        if gone == "Feature" and feature != "wave":
            message = git(tree, "log", "-1", "--format=%B").replace(f"Feature: {feature}\n", "")
            git(tree, "commit", "--quiet", "--amend", "-m", message)
    before = snapshot(own.root)
    done = own.patchctl("export", "greeter", "--dir", str(tree))
    assert done.returncode == 2 and snapshot(own.root) == before
    named = [line for line in done.stderr.splitlines() if ") lacks " in line]
    assert ["bow" in named[0], "nod" in named[1], len(named)] == [True, True, 2], done.stderr
    assert all(f"lacks {gone}" in line for line in named)


def test_new_files_only_and_names_that_a_list_cannot_hold(own: Made, tree: Path) -> None:
    commit_new(
        tree, "pkg", {"greeter/pkg/__init__.py": "", "greeter/pkg/a,b.txt": "1\n", "greeter/pkg/core.py": "C = 1\n"}
    )
    commit_new(tree, "solo", {"greeter/solo/__init__.py": "", "greeter/solo/core.py": "S = 1\n"})
    export(own, tree)
    own.good("lock")
    ws = Workspace(own, tree.parent / "ws")
    ws.apply()
    for name in ("pkg/__init__.py", "pkg/a,b.txt", "pkg/core.py", "solo/__init__.py", "solo/core.py"):
        assert (ws.folder / "greeter/greeter" / name).read_bytes() == (tree / "greeter" / name).read_bytes()
    assert "nothing differs" in own.good("export", "greeter", "--check")


def test_reorder_and_drop(own: Made, tree: Path) -> None:
    rebase(tree, "sed -i -e '2d'")  # polite goes; loud follows the fix
    export(own, tree)
    assert listed(own) == ["0001-bugfix-typo.patch", "0003-feature-loud.patch"]
    assert (
        not list((own.root / "patches/greeter/v1").rglob("*polite*"))
        and not (own.root / "patches/greeter/v1/polite/files").exists()
    )
    assert "index " in own.patch("loud").read_text()
    profile = own.root / "manifests/profiles/plain.yaml"
    profile.write_text(profile.read_text().replace("[polite, loud]", "[loud]"))
    own.good("lock")
    rebase(tree, "sed -i -e '1{h;d};2{G}'")
    result = export(own, tree, "--check", code=1)
    assert result["changes"]
    export(own, tree)
    assert listed(own) == ["0001-feature-loud.patch", "0002-bugfix-typo.patch"]


def test_rename_of_a_feature(own: Made, tree: Path) -> None:
    message = git(tree, "log", "-1", "--format=%B").replace("Feature: loud", "Feature: very_loud")
    git(tree, "commit", "--quiet", "--amend", "-m", message.strip())
    export(own, tree)
    assert listed(own)[-1] == "0003-feature-very_loud.patch"
    assert not list((own.root / "patches").rglob("*-loud.patch"))


REFUSED = {
    "no-feature": ("a subject\n\nNeed: x\n", "lacks Feature, Switch"),
    "bad-feature": ("a subject\n\nNeed: x\n\nFeature: Not A Name\n", "lacks Feature of lower-case letters"),
    "diff-in-the-message": ("a subject\n\n---\n\nFeature: x\n", "differently"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_commits_that_cannot_be_patches(own: Made, tree: Path, case: str) -> None:
    message, said = REFUSED[case]
    (tree / "README.md").write_text("changed\n")
    git(tree, "commit", "--quiet", "-a", "-m", message)
    before = snapshot(own.root)
    done = own.patchctl("export", "greeter", "--dir", str(tree))
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert snapshot(own.root) == before


def test_an_empty_commit_and_a_link_are_refused(own: Made, tree: Path) -> None:
    git(tree, "commit", "--quiet", "--allow-empty", "-m", f"nothing\n\nFeature: nothing\n{TRAILERS}")
    assert "changes nothing" in own.patchctl("export", "greeter", "--dir", str(tree)).stderr
    git(tree, "reset", "--quiet", "--hard", "HEAD~1")
    (tree / "link").symlink_to("/etc/passwd")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "-m", f"a link\n\nFeature: link\n{TRAILERS}")
    done = own.patchctl("export", "greeter", "--dir", str(tree))
    assert done.returncode == 2 and "a link or a submodule" in done.stderr, done.stderr
    git(tree, "reset", "--quiet", "--hard", "HEAD~1")
    git(tree, "checkout", "--quiet", "-b", "side", "HEAD~1")
    git(tree, "commit", "--quiet", "--allow-empty", "-m", "side\n\nFeature: side\n")
    git(tree, "checkout", "--quiet", "patchctl/v1")
    git(tree, "merge", "--quiet", "--no-ff", "side", "-m", "merge")
    assert "is a merge" in own.patchctl("export", "greeter", "--dir", str(tree)).stderr


def test_what_is_not_committed_is_not_exported(own: Made, tree: Path) -> None:
    (tree / "README.md").write_text("changed\n")
    done = own.patchctl("export", "greeter", "--dir", str(tree))
    assert done.returncode == 5 and "README.md" in done.stderr


WORK = {
    "a-commit": [("commit", "--quiet", "--allow-empty", "-m", "work")],
    "an-edit": [("rm", "--quiet", "README.md")],
    "a-branch": [
        ("checkout", "--quiet", "-b", "x"),
        ("commit", "--quiet", "--allow-empty", "-m", "w"),
        ("checkout", "--quiet", "patchctl/v1"),
    ],
    "a-stash": [("rm", "--quiet", "README.md"), ("stash", "--quiet")],
    "a-tag": [
        ("commit", "--quiet", "--allow-empty", "-m", "w"),
        ("tag", "t"),
        ("reset", "--quiet", "--hard", "HEAD~1"),
    ],
}


@pytest.mark.parametrize("case", WORK)
def test_edit_does_not_overwrite_work(own: Made, tree: Path, case: str) -> None:
    for words in WORK[case]:
        git(tree, *words)
    before = snapshot(tree)
    done = own.patchctl("edit", "greeter", "--dir", str(tree))
    assert done.returncode == 5 and "not exported" in done.stderr
    assert snapshot(tree) == before


def hide(tree: Path, flag: str) -> None:
    git(tree, "update-index", flag, "README.md")
    (tree / "README.md").write_text("mine\n")


def ignore(tree: Path) -> None:
    with (tree / ".git/info/exclude").open("a") as exclude:
        exclude.write("*.log\n.venv/\n*.pyc\n")
    (tree / ".venv").mkdir()
    (tree / ".venv/pyvenv.cfg").write_text("mine\n")
    (tree / "notes.log").write_text("mine\n")


@pytest.mark.parametrize("case", ["ignored", "--skip-worktree", "--assume-unchanged"])
def test_edit_does_not_overwrite_what_git_does_not_show(own: Made, tree: Path, case: str) -> None:
    ignore(tree) if case == "ignored" else hide(tree, case)
    before = snapshot(tree)
    done = own.patchctl("edit", "greeter", "--dir", str(tree))
    assert done.returncode == 5 and "git does not show" in done.stderr, done.stderr
    assert all(name in done.stderr for name in (["notes.log", ".venv/"] if case == "ignored" else ["README.md"]))
    assert snapshot(tree) == before


def test_bytecode_and_flags_without_an_edit_are_no_work(own: Made, tree: Path) -> None:
    git(tree, "update-index", "--skip-worktree", "README.md")
    with (tree / ".git/info/exclude").open("a") as exclude:
        exclude.write("*.pyc\n")
    (tree / "greeter/hello.pyc").write_bytes(b"compiled")
    own.good("edit", "greeter", "--dir", str(tree))
    assert not (tree / "greeter/hello.pyc").exists()


def files(tree: Path) -> dict[str, tuple[str, str]]:
    return {path: entry for path, entry in snapshot(tree).items() if not path.startswith(".git")}


@pytest.mark.heavy("kills a run at each of its renames")
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace, which kills at a system call")
def test_an_edit_that_was_killed_as_it_took_the_old_tree_away_can_be_repeated(own: Made, tree: Path) -> None:
    line = command(own, "edit", "greeter", "--dir", str(tree))
    whole = files(tree)
    for number in range(1, 30, 4):  # the calls that remove files and folders
        killing = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=unlinkat,rmdir,unlink,rename"]
        killing += ["-e", f"inject=unlinkat,rmdir,unlink,rename:signal=KILL:when={number}"]
        subprocess.run([*killing, *line], env=environment(own), check=False, capture_output=True)
        own.good("edit", "greeter", "--dir", str(tree))
        assert files(tree) == whole
        assert [p.name for p in tree.parent.iterdir() if "patchctl" in p.name] == []


UNFINISHED = {
    "a-bisect": [("bisect", "start", "HEAD", "HEAD~3")],
    "a-detached-head": [("checkout", "--quiet", "--detach", "HEAD~2")],
}


@pytest.mark.parametrize("case", UNFINISHED)
def test_an_export_from_lower_down_takes_no_patch_away(own: Made, tree: Path, case: str) -> None:
    for words in UNFINISHED[case]:
        git(tree, *words)
    before = patches(own)
    done = own.patchctl("export", "greeter", "--dir", str(tree))
    assert done.returncode == 5, done.stderr
    assert ("BISECT_LOG" if case == "a-bisect" else "patchctl/v1 has commits") in done.stderr
    assert patches(own) == before
    git(tree, *(("bisect", "reset") if case == "a-bisect" else ("checkout", "--quiet", "patchctl/v1")))
    assert export(own, tree)["changes"] == []


def test_a_detached_head_with_every_commit_is_exported(own: Made, tree: Path) -> None:
    git(tree, "checkout", "--quiet", "--detach")
    assert export(own, tree)["changes"] == []


def test_edit_and_new_files_and_other_folders(own: Made, tree: Path, tmp_path: Path) -> None:
    (tree / "notes.txt").write_text("mine\n")
    assert own.patchctl("edit", "greeter", "--dir", str(tree)).returncode == 5
    (tree / "notes.txt").unlink()
    own.good("edit", "greeter", "--dir", str(tree))  # nothing was changed: made anew
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("x\n")
    done = own.patchctl("edit", "greeter", "--dir", str(other))
    assert done.returncode == 5 and "no work tree of patchctl's" in done.stderr
    assert own.patchctl("export", "greeter", "--dir", str(other)).returncode == 2
    assert own.patchctl("export", "clock", "--dir", str(tree)).returncode == 2


def test_patch_files_that_somebody_else_changed_are_not_overwritten(own: Made, tree: Path) -> None:
    own.edit(own.patch("typo"), "Need: people ask", "Need: many people ask")
    before = snapshot(own.root)
    done = own.patchctl("export", "greeter", "--dir", str(tree))
    assert done.returncode == 5 and "changed since this work tree" in done.stderr
    assert snapshot(own.root) == before


def test_exported_twice(own: Made, tree: Path) -> None:
    commit_new(tree, "bow", {"greeter/bow.py": "BOW = 1\n"})
    export(own, tree)
    assert export(own, tree)["changes"] == []
    own.good("edit", "greeter", "--dir", str(tree))  # all of it is exported
    assert git(tree, "log", "-1", "--format=%s") == "bow: a new thing\n"


def test_the_default_folder(own: Made) -> None:
    own.good("edit", "greeter")
    folder = own.cache.parent / "home/edit/greeter-v1"
    assert (folder / "greeter/manners.py").exists()
    assert "nothing differs" in own.good("export", "greeter")
    shutil.rmtree(folder)
    assert own.patchctl("export", "greeter").returncode == 2


def test_mbox_gives_the_same_commits_to_git_am(own: Made, tmp_path: Path) -> None:
    target = tmp_path / "mbox"
    out = own.good("export", "greeter", "--mbox", str(target))
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(own.origins / "greeter"), str(clone))
    env = {**GIT_ENV, "GIT_COMMITTER_NAME": "patchctl", "GIT_COMMITTER_EMAIL": "patchctl@localhost"}
    env.pop("GIT_COMMITTER_DATE")
    files = sorted(str(p) for p in target.iterdir())
    line = ["git", "-C", str(clone), "am", "--quiet", "--committer-date-is-author-date", *files]
    subprocess.run(line, env=env, check=True, capture_output=True)
    assert git(clone, "rev-parse", "HEAD").strip() in out
    ws = Workspace(own, tmp_path / "ws")
    ws.apply()
    assert git(ws.folder / "greeter", "log", "--format=%H") == git(clone, "log", "--format=%H")
    done = own.patchctl("export", "greeter", "--mbox", str(target))
    assert done.returncode == 2 and "is not empty" in done.stderr


def test_check_needs_no_tree_and_writes_nothing(own: Made) -> None:
    before = snapshot(own.root)
    assert "nothing differs" in own.good("export", "greeter", "--check")
    assert snapshot(own.root) == before
    assert os.listdir(own.cache.parent / "home") == []


def test_the_work_trees_own_settings_run_nothing_and_mislead_nobody(own: Made, tree: Path, tmp_path: Path) -> None:
    (tree / "greeter/hello.py").write_text((tree / "greeter/hello.py").read_text() + "# mine\n")
    git(tree, "commit", "--quiet", "--amend", "-a", "--no-edit")
    (tmp_path / "elsewhere").mkdir()
    command = f"touch '{tmp_path / 'ran'}'"
    for name in ("core.fsmonitor", "diff.external", "filter.mine.clean"):
        git(tree, "config", name, command)
    git(tree, "config", "core.worktree", str(tmp_path / "elsewhere"))
    (tree / ".git/info/attributes").write_text("* filter=mine text eol=crlf\n")
    export(own, tree)
    assert "# mine" in own.patch("loud").read_text() and not (tmp_path / "ran").exists()
    own.good("edit", "greeter", "--dir", str(tree))
    assert command in (tree / ".git/config").read_text() and not (tmp_path / "ran").exists()


def test_edit_again_takes_over_what_was_set_up(own: Made, tree: Path) -> None:
    git(tree, "config", "alias.st", "status")
    (tree / ".git/hooks").mkdir(exist_ok=True)
    (tree / ".git/hooks/pre-commit").write_text("#!/bin/sh\nexit 1\n")
    with (tree / ".git/info/exclude").open("a") as exclude:
        exclude.write("*.mine\n")
    git(tree, "update-index", "--assume-unchanged", "README.md")
    (tree / "greeter/hello.py").chmod(0o600)
    own.good("edit", "greeter", "--dir", str(tree))
    assert git(tree, "config", "alias.st") == "status\n"
    assert (tree / ".git/hooks/pre-commit").read_text() == "#!/bin/sh\nexit 1\n"
    assert "*.mine" in (tree / ".git/info/exclude").read_text()
    assert git(tree, "ls-files", "-v", "README.md").startswith("h")
    assert (tree / "greeter/hello.py").stat().st_mode & 0o777 == 0o600
    export(own, tree, "--check")


def test_what_others_signed_stays_with_a_patch_for_upstream(own: Made, tree: Path, tmp_path: Path) -> None:
    said = git(tree, "log", "-1", "--format=%B").rstrip()
    signs = f"{said}\nFixes: 0123456789ab\nSigned-off-by: B <b@b>"
    git(tree, "commit", "--quiet", "--amend", "--author", "B <b@b>", "-m", signs)
    export(own, tree)
    told = own.good("export", "greeter", "--for-upstream", "loud", "--mbox", str(tmp_path / "unsigned"))
    assert "as author" not in told  # its author is a person
    signed = ("--signoff", "A Name <a@name>")
    own.good("export", "greeter", "--for-upstream", "loud", "--mbox", str(tmp_path / "pr"), *signed)
    assert "\nFrom: A Name <a@name>\n" in (tmp_path / "pr" / "0001-typo.patch").read_text()
    mail = (tmp_path / "pr" / "0002-loud.patch").read_text()
    assert "\nFrom: B <b@b>\n" in mail
    assert "\nFixes: 0123456789ab\nSigned-off-by: B <b@b>\nSigned-off-by: A Name <a@name>\n---\n" in mail
    assert "Fixes" not in (tmp_path / "pr" / "LEFT-OUT.txt").read_text() and "\nFeature:" not in mail


def test_titles_in_upstreams_form_and_an_author_who_signs_off(small: Made, tmp_path: Path) -> None:
    file = small.root / "manifests/upstreams.yaml"
    kept, titles = (
        file.read_text(),
        '{bugfix: "[{area}] fix: {what}", feature: "[{area}] feat: {what}", areas: {hello: core}}',
    )
    file.write_text(re.sub(r"(  greeter:\n)", rf"\1    titles: {titles}\n", kept))
    try:
        signed = ("--signoff", "A Name <a@name>")
        done = small.good("export", "greeter", "--for-upstream", "loud", "--mbox", str(tmp_path / "pr"), *signed)
    finally:
        file.write_text(kept)
    assert "Signed-off-by" not in done and "as author" not in done
    assert "git am --keep-cr --keep-non-patch" in (tmp_path / "pr/LEFT-OUT.txt").read_text()
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(small.origins / "greeter"), str(clone))
    git(clone, "checkout", "--quiet", re.findall("[0-9a-f]{40}", done)[0])
    mails = map(str, sorted((tmp_path / "pr").glob("*.patch")))
    git(clone, "-c", "user.name=a", "-c", "user.email=a@b", "am", "--quiet", "--keep-non-patch", *mails)
    said = git(clone, "log", "-2", "--format=%an <%ae> %s%n%(trailers:key=Signed-off-by,valueonly)")
    assert said.split("\n\n")[:2] == [
        "A Name <a@name> [core] feat: repeat a shout\nA Name <a@name>",
        "A Name <a@name> [core] fix: spell the greeting right\nA Name <a@name>",
    ]
    assert small.patchctl("export", "greeter", "--signoff", "A Name <a@name>").returncode == 2
    wrong = ("--mbox", str(tmp_path / "y"), "--signoff", "nobody")
    assert "--signoff: " in small.patchctl("export", "greeter", "--for-upstream", "loud", *wrong).stderr


def test_a_pull_request_has_tests_for_upstreams_own_suite(small: Made, tmp_path: Path) -> None:
    (folder,) = small.root.glob("patches/greeter/*/loud")
    proposed = folder / "pull_request/tests/test_loud.py"
    proposed.parent.mkdir(parents=True)
    proposed.write_text("def test_loud():\n    pass\n")
    try:
        small.good("export", "greeter", "--for-upstream", "loud", "--mbox", str(tmp_path / "pr"))
        small.good("export", "greeter", "--mbox", str(tmp_path / "all"))
        assert "unlisted-file" not in small.patchctl("verify", "--static").stdout
    finally:
        shutil.rmtree(folder / "pull_request")
    assert "b/tests/test_loud.py" in (tmp_path / "pr/0002-loud.patch").read_text()
    assert "test_loud" not in (tmp_path / "pr/0001-typo.patch").read_text()
    assert "test_loud" not in "".join(
        file.read_text() for file in (tmp_path / "all").iterdir()
    )  # no patched tree has it


def test_a_feature_as_upstream_could_take_it(small: Made, tmp_path: Path) -> None:
    """loud comes behind polite, and requires typo alone."""
    target = tmp_path / "pr"
    data = json.loads(small.good("export", "greeter", "--for-upstream", "loud", "--mbox", str(target), "--json"))
    assert data["files"] == ["0001-typo.patch", "0002-loud.patch"]
    texts = "".join((target / name).read_text() for name in data["files"])
    assert "Need: " in texts
    for ours in ("Feature:", "Switch:", "Requires:", "Upstream-Status:", "Drop-When:", "Signed-off-by"):
        assert ours not in texts
    said = (target / "LEFT-OUT.txt").read_text()
    assert (
        "Signed-off-by" in said and "typo come first" in said and data["left_out"][0].startswith("the trailers Feature")
    )
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(small.origins / "greeter"), str(clone))
    git(clone, "checkout", "--quiet", data["base"])
    git(clone, "-c", "user.name=a", "-c", "user.email=a@b", "am", "--quiet", *(str(target / n) for n in data["files"]))
    hello = (clone / "greeter/hello.py").read_text()
    assert "Hello" in hello and "LOUD" in hello and "polite" not in hello
    done = small.patchctl("export", "greeter", "--for-upstream", "polite", "--mbox", str(tmp_path / "polite"))
    assert (
        done.returncode == 4 and "polite builds on lines of a feature that is left out" in done.stderr
    )  # typo's, unsaid
    assert not (tmp_path / "polite").exists()
    assert small.patchctl("export", "greeter", "--for-upstream", "loud", "--mbox", str(target)).returncode == 2
    assert small.patchctl("export", "greeter", "--for-upstream", "loud").returncode == 2
    assert (
        "did you mean polite"
        in small.patchctl("export", "greeter", "--for-upstream", "polit", "--mbox", str(tmp_path / "x")).stderr
    )
