"""patches/UPSTREAM/shared/FEATURE: carried files that stacks have with the same bytes stand once, and each stack reads them there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from distribution import GREETER, Made, git, make_distribution, write_files
from on_disk import Workspace, snapshot

from patchctl.manifest.files import distribution_files

CARRIED = "polite/files/greeter/manners.py"


@pytest.fixture
def shared(tmp_path: Path) -> Made:
    """A distribution whose one carried file lies where stacks share it; its lock is from before."""
    made = make_distribution(tmp_path / "made", (GREETER,), lock=True)
    patches = made.root / "patches/greeter"
    (patches / "shared" / CARRIED).parent.mkdir(parents=True)
    (patches / "v1" / CARRIED).rename(patches / "shared" / CARRIED)
    shutil.rmtree(patches / "v1/polite/files")
    return made


def test_it_is_locked_verified_and_applied_as_before(shared: Made, tmp_path: Path) -> None:
    shared.good("lock", "--pages")
    shared.good("lock", "--check")
    shared.good("verify")
    ws = Workspace(shared, tmp_path / "ws")
    ws.apply()
    assert "please" in (ws.folder / "greeter/greeter/manners.py").read_text()
    (found,) = json.loads(shared.good("show", "polite", "--json"))["patches"]
    assert [f["path"] for f in found["files"] if f["change"] == "carried"] == ["greeter/manners.py"]


def test_another_byte_is_another_patch(shared: Made) -> None:
    shared.edit(f"patches/greeter/shared/{CARRIED}", "please", "kindly")
    assert shared.patchctl("lock", "--check").returncode == 1


def test_a_finding_names_the_file_that_is_read(shared: Made) -> None:
    (shared.root / "patches/greeter/shared" / CARRIED).write_text("def polite(:\n")
    done = shared.patchctl("verify", "--static", "--json")
    found = {f["file"] for f in json.loads(done.stdout)["findings"] if f["rule"] == "python-compiles"}
    assert found == {f"patches/greeter/shared/{CARRIED}"}


def test_a_file_of_the_stack_comes_first_and_leaves_the_shared_one_to_none(shared: Made) -> None:
    write_files(
        shared.root, {f"patches/greeter/v1/{CARRIED}": (shared.root / "patches/greeter/shared" / CARRIED).read_text()}
    )
    shared.edit(f"patches/greeter/shared/{CARRIED}", "please", "kindly")
    shared.good("lock", "--check")
    done = shared.patchctl("verify", "--static", "--json")
    found = [(f["rule"], f["file"]) for f in json.loads(done.stdout)["findings"] if f["rule"] == "carried-file"]
    assert found == [("carried-file", f"patches/greeter/shared/{CARRIED}")]


def test_a_link_is_refused(shared: Made, tmp_path: Path) -> None:
    file = shared.root / "patches/greeter/shared" / CARRIED
    file.rename(tmp_path / "manners.py")
    file.symlink_to(tmp_path / "manners.py")
    assert "is not a file" in shared.patchctl("lock", "--check").stderr


def reword(tree: Path) -> None:
    """Change the carried file in the commit of its patch."""
    manners = tree / "greeter/manners.py"
    manners.write_text(manners.read_text().replace("please", "kindly"))
    head = git(tree, "log", "--format=%H", "--grep=^Feature: polite$").strip()
    git(tree, "commit", "--quiet", "-a", f"--fixup={head}")
    git(tree, "-c", "sequence.editor=true", "rebase", "-q", "-i", "--autosquash", f"{head}^")


def test_export_keeps_it_shared_and_writes_a_changed_one_into_the_stack(shared: Made, tmp_path: Path) -> None:
    tree, patches = tmp_path / "tree", shared.root / "patches/greeter"
    shared.good("edit", "greeter", "--dir", str(tree))
    before = snapshot(patches)
    shared.good("export", "greeter", "--dir", str(tree), "--check")
    shared.good("export", "greeter", "--dir", str(tree))
    assert snapshot(patches) == before
    reword(tree)
    shared.good("export", "greeter", "--dir", str(tree))
    assert "kindly" in (patches / "v1" / CARRIED).read_text()
    assert "please" in (patches / "shared" / CARRIED).read_text()


def test_a_rebase_keeps_it_shared_until_the_new_stack_changes_it(shared: Made, tmp_path: Path) -> None:
    origin, patches, tree = shared.origins / "greeter", shared.root / "patches/greeter", tmp_path / "tree"
    git(origin, "tag", "v1")
    write_files(origin, {"README.md": "greeter, again\n"})
    git(origin, "commit", "--quiet", "-a", "-m", "the next one")
    git(origin, "tag", "v2")
    shared.good("rebase", "greeter/v1", "--to", "v2", "--dir", str(tree))
    assert sorted(p.name for p in (patches / "v2/polite").iterdir()) == ["0002-feature-polite.patch"]
    reword(tree)
    shared.good("export", "greeter/v2", "--dir", str(tree))
    assert "kindly" in (patches / "v2" / CARRIED).read_text()
    assert not (patches / "v1" / CARRIED).exists()
    assert "please" in (patches / "shared" / CARRIED).read_text()
    shared.good("lock")
    shared.good("lock", "--check")


def test_a_bundle_and_a_node_get_it(shared: Made, tmp_path: Path) -> None:
    name = f"patches/greeter/shared/{CARRIED}"
    assert name in dict(distribution_files(shared.root))
    out = tmp_path / "all.bundle"
    shared.good("bundle", "create", "--profile", "full", "--out", str(out))
    members = json.loads(shared.good("bundle", "show", str(out), "--members", "--json"))["members"]
    assert f"distribution/{name}" in {member["name"] for member in members}
