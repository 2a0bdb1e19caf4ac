"""Which trees of a workspace can be installed: those exactly as lock and state record them.

Also the submodules that a native build compiles; if the source lacks their files, they come from a clone in the tree.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import LocalEdits, SourceMismatch, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import EXECUTABLE, GITLINK, REGULAR, SYMLINK, Files
from patchctl.git.run import GitFailed
from patchctl.manifest.distribution import Distribution
from patchctl.stack.tree_lists import read_tree_list
from patchctl.workspace.state import TreeState, WorkspaceState, in_profile, load_state
from patchctl.workspace.status import Status, read_status
from patchctl.workspace.trees import Tree, commit_tree


def _files(git_dir: Path, commit: str) -> Iterator[tuple[str, int, bytes]]:
    """Yield (path, mode, content) of a commit's files but for links."""
    with ObjectReader(git_dir) as reader:
        found = reader.files(commit_tree(reader, commit))
        for path, data in reader.blobs(found, sorted(p for p in found if found[p].mode != SYMLINK)):
            yield path.decode("utf-8"), found[path].mode, data


def write_files(files: Iterable[tuple[str, int, bytes]], folder: Path) -> Path:
    """Write files below `folder`, where setup.py may write."""
    for path, mode, data in files:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        if mode == EXECUTABLE:
            target.chmod(0o755)
    return folder


@dataclass(frozen=True)
class InstallTree:
    """A tree to install. `packages` maps import packages to folders; `version` is the pin's sdist version, if any."""

    upstream: str
    tree: Tree
    state: TreeState
    packages: Mapping[str, str]
    version: str | None

    @property
    def folder(self) -> Path:
        """The work tree."""
        return self.tree.folder

    def files(self, *, generated: bool = True) -> Iterator[tuple[str, int, bytes]]:
        """Yield (path, mode, content) of the tip's files from the tree's objects, and of generated files on disk.

        Reading objects keeps out edits made since the check. Links and submodules are skipped.
        """
        yield from _files(self.tree.git_dir, self.state.tip_commit)
        for name in sorted(self.state.generated) if generated else ():
            yield name, REGULAR, (self.folder / name).read_bytes()


def install_trees(workspace: Path, dist: Distribution) -> tuple[list[InstallTree], dict[str, str]]:
    """Return the trees to install, and why others are not, by upstream.

    Raises LocalEdits if a tree was edited, WrongUse if it is not what the lock records or a run was interrupted.
    """
    status = read_status(workspace, dist, None)
    state = load_state(workspace)
    if status.interrupted is not None:
        hint = f"`patchctl repair --workspace {shlex.quote(str(workspace))}` says how it ends; then install"
        raise WrongUse(f"{status.interrupted} of {workspace} was interrupted", hint=hint)
    if state is None or status.profile is None:
        hint = f"`patchctl apply --profile PROFILE --workspace {shlex.quote(str(workspace))}`, then install"
        raise WrongUse(f"no profile is applied to {workspace}", hint=hint)
    _check(status, state, workspace)
    trees, passed_by = [], {s.upstream: "its source was not available to `patchctl apply`" for s in state.skipped}
    for name, tree_state in sorted(state.trees.items()):
        packages = dist.upstream(name).packages
        if tree_state.kind == "into":
            passed_by[name] = f"it was patched in place, in {tree_state.folder}"
        elif not packages:
            passed_by[name] = "upstreams.yaml lists no import package of it"
        elif not in_profile(tree_state):
            passed_by[name] = "it is not part of the profile"
        else:
            sdist = dist.stack(name, tree_state.stack).pin.sdist
            version = sdist.version if sdist is not None else None
            trees.append(InstallTree(name, Tree.of(workspace, name, tree_state), tree_state, packages, version))
    if not trees:
        reasons = "; ".join(f"{n}: {why}" for n, why in passed_by.items())
        raise WrongUse(f"{workspace} has no tree to install", hint=reasons or None)
    return trees, passed_by


def _apply(state: WorkspaceState, workspace: Path, *options: str) -> str:
    """Return the apply command that made the workspace, with more options."""
    words = ["patchctl", "apply", "--profile", str(state.profile), "--workspace", str(workspace), *options]
    words += ["--release", state.release] if state.release else []
    words += [f"--without={feature}" for feature in state.without]
    return shlex.join([*words, *(["--skip-unavailable"] if state.skipped else [])])


def _check(status: Status, state: WorkspaceState, workspace: Path) -> None:
    edited = [f"{t.folder}/{path}" for t in status.trees for path in t.edits]
    for name, tree_state in state.trees.items():
        tree = Tree.of(workspace, name, tree_state)
        edited += tree.shown(tree.edited_generated({}, tree_state.generated))
        gone = [p for p in tree_state.generated if not tree.holds(p.encode())]
        edited += tree.shown(p.encode() for p in gone)
    if edited:
        hint = f"`{_apply(state, workspace, '--stash')}` keeps them on a branch of the tree; then install"
        raise LocalEdits("trees were edited since they were applied", sorted(edited), hint=hint)
    again = f"`{_apply(state, workspace)}`, then install"
    for found in status.trees:
        if found.problem is not None:
            raise LocalEdits(f"{found.upstream}: {found.problem}", [found.folder], hint=again)
        if found.lock not in ("equal", "silent"):
            raise WrongUse(f"{found.upstream}: {found.lock}", where=found.folder, hint=again)


@dataclass(frozen=True)
class Submodule:
    """A submodule: its path in the tree, its folder on disk, and the commit that upstream pins."""

    path: str
    folder: Path
    commit: str

    def files(self) -> Iterator[tuple[str, int, bytes]]:
        """Yield (path, mode, content) from the clone's objects, so without edits in the clone."""
        return _files(self.folder / ".git", self.commit)


def submodules(item: InstallTree, dist: Distribution) -> list[Submodule]:
    """Return the tree's submodules. Raises WrongUse if the clone in one's folder lacks the commit."""
    found = [Submodule(path, item.folder / path, commit) for path, commit in sorted(_links(item, dist).items())]
    for module in found:
        try:
            with ObjectReader(module.folder / ".git") as reader:
                commit_tree(reader, module.commit)
        except (SourceMismatch, GitFailed, OSError) as error:
            what = f"{item.upstream}'s build compiles a submodule whose commit {module.commit} is missing"
            hint = f"`git clone URL {shlex.quote(str(module.folder))}` with the URL in {item.folder}/.gitmodules; or omit --build-native"
            raise WrongUse(what, where=str(module.folder), hint=hint) from error
    return found


def _links(item: InstallTree, dist: Distribution) -> dict[str, str]:
    """Return submodule commits by path; for a source distribution, from the pin's committed file list.

    A submodule with files in the tree needs no clone: vllm-ascend 0.23.0's sdist was packed with catlass checked out.
    """
    with ObjectReader(item.tree.git_dir) as reader:
        files: Files = reader.files(commit_tree(reader, item.state.tip_commit))
    listed = read_tree_list(dist.root, dist.stack(item.upstream, item.state.stack))
    known = {**(listed.files if listed is not None else {}), **files}
    links = {path.decode("utf-8"): entry.id for path, entry in known.items() if entry.mode == GITLINK}
    return {path: commit for path, commit in links.items() if not any(f.startswith(f"{path}/".encode()) for f in files)}
