"""Submodules that a native build compiles: where the source does not hold their files, they come from a clone in the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import SourceMismatch, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import EXECUTABLE, GITLINK, SYMLINK, Files
from patchctl.git.run import GitFailed
from patchctl.identify.lists import read_tree_list
from patchctl.install.installable import InstallTree
from patchctl.manifest.distribution import Distribution
from patchctl.workspace.trees import commit_tree


@dataclass(frozen=True)
class Submodule:
    """A submodule of a tree: its path there, the folder on the disk, and the commit that upstream's pin names."""

    path: str
    folder: Path
    commit: str


def submodules(item: InstallTree, dist: Distribution) -> list[Submodule]:
    """Those of the tree, checked: the clone in each one's folder has the commit. Raises WrongUse for one that has not."""
    found = [Submodule(path, item.folder / path, commit) for path, commit in sorted(_links(item, dist).items())]
    for module in found:
        try:
            with ObjectReader(module.folder / ".git") as reader:
                commit_tree(reader, module.commit)
        except (SourceMismatch, GitFailed, OSError) as error:
            what = f"{item.upstream} has a submodule that its build compiles, and commit {module.commit} is not there"
            hint = f"`git clone URL {module.folder}` with the URL of {item.folder}/.gitmodules; or leave --build-native out"
            raise WrongUse(what, where=str(module.folder), hint=hint) from error
    return found


def _links(item: InstallTree, dist: Distribution) -> dict[str, str]:
    """Commits by path. A source distribution has no entry for a submodule: the checked-in list of the pin's files has.

    One whose files are in the tree needs no clone: vllm-ascend 0.23.0's source distribution was packed with catlass checked out.
    """
    with ObjectReader(item.tree.git_dir) as reader:
        files: Files = reader.files(commit_tree(reader, item.state.tip_commit))
    listed = read_tree_list(dist.root, dist.stack(item.upstream, item.state.stack))
    known = {**(listed.files if listed is not None else {}), **files}
    links = {path.decode("utf-8"): entry.id for path, entry in known.items() if entry.mode == GITLINK}
    return {path: commit for path, commit in links.items() if not any(f.startswith(f"{path}/".encode()) for f in files)}


def write_submodules(modules: Sequence[Submodule], copy: Path) -> None:
    """Their files into a copy of the tree, from the clones' objects: what was edited in a clone does not get in."""
    for module in modules:
        with ObjectReader(module.folder / ".git") as reader:
            files = reader.files(commit_tree(reader, module.commit))
            for path, data in reader.blobs(files, sorted(p for p in files if files[p].mode != SYMLINK)):
                target = copy / module.path / path.decode("utf-8")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                if files[path].mode == EXECUTABLE:
                    target.chmod(0o755)
