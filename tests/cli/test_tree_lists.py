"""The lists of the pins' files: those checked in are the pins' own trees, and damaged ones are refused with a line."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from distribution import GREETER, Made, make_distribution, write_files

from patchctl.errors import BadManifest, SourceUnavailable
from patchctl.git.objects import TreeBuilder
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import read
from patchctl.manifest.lock import LockedForm, read_lock
from patchctl.manifest.types import Stack
from patchctl.source.cache import cache_root
from patchctl.source.obtain import obtain_form
from patchctl.source.types import Base, Form, SourceOptions
from patchctl.stack.tree_lists import (
    check_tree_list,
    parse_tree_list,
    read_tree_list,
    render_tree_list,
    tree_list_file,
    update_tree_list,
)
from patchctl.terminal.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
HEAD = b"# u s: git commit " + b"1" * 40 + b"\n"
ID = b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
REAL = [(p.parent.name, p.stem) for p in sorted((ROOT / "manifests" / "stacks").glob("*/*.yaml"))]


@pytest.mark.parametrize(("upstream", "name"), REAL)
def test_every_stack_has_the_list_of_its_pins_tree(upstream: str, name: str) -> None:
    """A list of form git hashes to the pin's tree; that of an sdist to the base tree that the lock has."""
    stack = read(ROOT / "manifests" / "stacks" / upstream / f"{name}.yaml", Stack).value
    found = read_tree_list(ROOT, stack)
    assert found is not None
    tree = TreeBuilder(found.files).write()
    if found.form == "git":
        assert tree == stack.pin.tree
    else:
        lock = read_lock(ROOT, stack)
        record = lock.results[0].forms["sdist"] if lock else None
        assert isinstance(record, LockedForm) and tree == record.base_tree
    assert render_tree_list(found) == tree_list_file(ROOT, upstream, name).read_bytes()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", 1),
        (b"no head\n", 1),
        (HEAD + b"100644\t" + ID + b"\ta", 1),  # cut off: no newline at the end
        (HEAD + b"100644 " + ID + b"\ta\n", 2),
        (HEAD + b"100600\t" + ID + b"\ta\n", 2),
        (HEAD + b"100644\t" + ID[:-1] + b"\ta\n", 2),
        (HEAD + b"100644\t" + ID + b"\tb\n100644\t" + ID + b"\ta\n", 3),
        (HEAD + b"100644\t" + ID + b"\ta\n100644\t" + ID + b"\ta\n", 3),
        (HEAD + b"100644\t" + ID + b"\t\n", 2),
        (HEAD + b"100644\t" + ID + b"\ta\r\n\n", 3),
    ],
)
def test_a_damaged_list_is_refused_with_its_line(data: bytes, line: int) -> None:
    with pytest.raises(BadManifest) as refused:
        parse_tree_list(data, "list.tsv")
    assert refused.value.where is not None and refused.value.where.line == line


def test_names_of_any_bytes_come_back() -> None:
    data = HEAD + b"100644\t" + ID + b"\ta\tb\n100755\t" + ID + b"\t\xff \xc3\xa9\n"
    found = parse_tree_list(data, "list.tsv")
    assert set(found.files) == {b"a\tb", b"\xff \xc3\xa9"}
    assert render_tree_list(found) == data


def test_a_name_with_a_line_end_cannot_be_listed() -> None:
    found = parse_tree_list(HEAD + b"100644\t" + ID + b"\ta\n", "list.tsv")
    found.files[b"two\nlines"] = found.files.pop(b"a")
    with pytest.raises(BadManifest):
        render_tree_list(found)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Distribution, Base]:
    made = make_distribution(tmp_path, (GREETER,))
    dist = Distribution.load(made.root)
    stack = dist.stack("greeter", "v1")
    options = SourceOptions(cache=made.cache)
    return dist, obtain_form("git", dist.upstream("greeter"), stack, options, Progress())


def test_the_list_is_written_once_and_then_checked(made: tuple[Distribution, Base]) -> None:
    dist, base = made
    stack = dist.stack("greeter", "v1")
    assert "missing" in str(check_tree_list(dist.root, stack, base))
    assert not tree_list_file(dist.root, "greeter", "v1").exists()
    assert "missing" in str(update_tree_list(dist.root, stack, base))
    assert check_tree_list(dist.root, stack, base) is None
    assert update_tree_list(dist.root, stack, base) is None
    text = tree_list_file(dist.root, "greeter", "v1").read_text()
    assert text.startswith(f"# greeter v1: git commit {stack.pin.commit}\n100644\t")
    assert text.splitlines()[-1].startswith("100755\t") and text.endswith("\trun.sh\n")


def test_a_changed_list_is_found_and_written_again(made: tuple[Distribution, Base]) -> None:
    dist, base = made
    stack = dist.stack("greeter", "v1")
    update_tree_list(dist.root, stack, base)
    file = tree_list_file(dist.root, "greeter", "v1")
    right = file.read_bytes()
    file.write_bytes(right.replace(b"100755", b"100644"))
    difference = str(check_tree_list(dist.root, stack, base))
    assert "differs" in difference and "run.sh" in difference
    update_tree_list(dist.root, stack, base)
    assert file.read_bytes() == right
    write_files(file.parent, {file.name: "damaged\n"})
    update_tree_list(dist.root, stack, base)
    assert file.read_bytes() == right


@pytest.mark.parametrize("form", ["git", "sdist"])
@pytest.mark.parametrize(("upstream", "name"), REAL)
def test_each_source_that_can_be_had_agrees_with_its_list(tmp_path: Path, upstream: str, name: str, form: Form) -> None:
    """Sdists come from the package index, git forms from PATCHCTL_MIRRORS alone: what a cache holds is nobody else's."""
    dist = Distribution.load(ROOT)
    stack = dist.stack(upstream, name)
    mirrors: dict[str, list[str]] = {}
    if form == "git":
        mirror = Path(os.environ.get("PATCHCTL_MIRRORS", "")) / upstream
        if "PATCHCTL_MIRRORS" not in os.environ or not mirror.exists():
            pytest.skip(f"PATCHCTL_MIRRORS names no folder with a mirror of {upstream}")
        mirrors = {upstream: [str(mirror)]}
    elif stack.pin.sdist is None:
        pytest.skip(f"no source distribution is pinned for {upstream} {name}")
    options = SourceOptions(cache=tmp_path if mirrors else cache_root(), mirrors=mirrors)
    try:
        base = obtain_form(form, dist.upstream(upstream), stack, options, Progress())
    except SourceUnavailable as failure:
        pytest.skip(f"{upstream} {name} from {form}: {'; '.join(one.reason for one in failure.tried)}")
    assert check_tree_list(ROOT, stack, base) is None


def _made_with(tmp_path: Path, untracked: dict[str, str], submodules: tuple[str, ...] = ()) -> Made:
    """A locked distribution of one upstream whose sdist holds all files of the commit, and `untracked`."""
    upstream = replace(GREETER, sdist=tuple(GREETER.files), untracked=untracked, submodules=submodules)
    made = make_distribution(tmp_path, (upstream,))
    made.good("lock", "--source", "git")
    made.patchctl("lock")  # both forms where they agree
    return made


def _stranger(made: Made, *args: str) -> tuple[int, str]:
    """What a machine without the git form is told."""
    done = made.patchctl(*args, "--source", "sdist")
    return done.returncode, done.stdout + done.stderr


def _follow(made: Made, text: str) -> None:
    """Does to the manifest what the message says."""
    told = re.search(r"(?s)\b(?:add|remove) .*? (manifests/\S+\.yaml)", " ".join(text.split()))
    assert told, text
    manifest = made.root / told[1]
    if line := re.search(r"add `(untracked: \{.*?\})`", told[0]):
        lines = manifest.read_text().replace("  sdist:\n", f"  sdist:\n    {line[1]}\n")
    else:
        gone = re.search(r"remove (\S+) from", told[0])
        assert gone, told[0]
        lines = re.sub(rf"    untracked: \{{{re.escape(gone[1])}: [^}}]*\}}\n", "", manifest.read_text())
    manifest.write_text(lines)


def test_files_of_a_submodule_are_named_as_the_hint_says(tmp_path: Path) -> None:
    """On a machine with a package index alone `verify` was red, and `lock` refused to do what its hint said."""
    made = _made_with(tmp_path, {"third/party/a.h": "a\n", "third/party/b.h": "b\n"}, ("third/party",))
    code, text = _stranger(made, "verify")
    assert code == 1 and "in 2 files" in text and "which the pinned commit does not track" in text, text
    code, refused = _stranger(made, "lock")
    assert code == 2 and "untracked: {third/party:" in refused
    _follow(made, text)
    assert _stranger(made, "lock")[0] == 0
    assert _stranger(made, "verify")[0] == 0
    assert made.patchctl("lock", "--check").returncode == 0


def test_a_name_that_covers_nothing_is_taken_out_again(tmp_path: Path) -> None:
    made = _made_with(tmp_path / "one", {"extra.txt": "x\n"})
    _follow(made, _stranger(made, "verify")[1])
    assert _stranger(made, "verify")[0] == 0
    made = _made_with(tmp_path / "other", {})
    write_untracked(made, "extra.txt: Shipped by hand.")
    code, text = _stranger(made, "verify")
    assert code == 1 and "has no file at extra.txt" in text
    _follow(made, text)
    assert _stranger(made, "verify")[0] == 0


def test_no_name_covers_a_tracked_file_that_was_changed(tmp_path: Path) -> None:
    """The hint's command writes the list of the commit, from a repository."""
    made = _made_with(tmp_path, {"extra/a.h": "x\n"})
    write_untracked(made, "extra: Shipped by hand.")
    file = tree_list_file(made.root, "greeter", "v1")
    right = file.read_bytes()
    file.write_bytes(right.replace(b"100755", b"100644"))
    code, text = _stranger(made, "verify")
    told = re.search(r"`patchctl (lock .*?)`", " ".join(text.split()))
    assert code == 1 and told, text
    made.good(*told[1].replace("REPOSITORY", str(made.origins / "greeter")).split())
    assert file.read_bytes() == right
    assert _stranger(made, "verify")[0] == 0


def write_untracked(made: Made, line: str) -> None:
    manifest = made.root / "manifests/stacks/greeter/v1.yaml"
    manifest.write_text(manifest.read_text().replace("  sdist:\n", f"  sdist:\n    untracked: {{{line}}}\n"))
