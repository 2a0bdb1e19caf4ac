"""`patchctl verify --workspace`: the trees on disk, read back. Takes no lock, writes nothing, needs no cache.

Nothing is believed because the state says so: files are read and hashed, objects are hashed when they are read, and the
last commit is computed again from the distribution's patches on the base that the tree's own repository holds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from patchctl.errors import (
    BadManifest,
    BadPatch,
    BrokenRepository,
    DoesNotApply,
    PatchctlError,
    SourceMismatch,
    Tried,
    WrongUse,
)
from patchctl.findings import Finding, Level, NotChecked, Report, from_error
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import Files
from patchctl.git.run import GitFailed
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import lock_file, read_lock
from patchctl.manifest.types import Profile, Stack
from patchctl.os_errors import is_resource_error
from patchctl.source.types import Base, Form
from patchctl.stack.build import StackBuilder
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import load_patches, missing_files
from patchctl.terminal.progress import Progress
from patchctl.workspace.checks import operation_in
from patchctl.workspace.imports import additions, forged, shadows
from patchctl.workspace.journal import read_journal
from patchctl.workspace.pip_record import record_is_ours
from patchctl.workspace.state import FOLDER, AppliedPatch, TreeState, WorkspaceState, in_profile, load_state
from patchctl.workspace.status import unlike_profile
from patchctl.workspace.tree_files import TreeFiles
from patchctl.workspace.trees import Tree, commit_tree

_AGAIN = "apply again"
_SHOWN_UNTRACKED = 20


def verify_workspace(
    workspace: Path, dist: Distribution | None, progress: Progress, *, within: Path | None = None
) -> Report:
    """Every tree of the state. Without a distribution only the trees themselves are checked; the report says so, and
    its exit code is 3. `within`: the root that the absolute folders of the state are below, as an unpacked image's.

    Raises WrongUse when nothing was applied there, BadManifest for a state or journal that cannot be used.
    """
    state, journal = load_state(workspace), read_journal(workspace)
    if state is None and journal is None:
        raise WrongUse(f"nothing was applied to {workspace}", hint="name the workspace with --workspace DIR")
    report = Report()
    if journal is not None:
        message = f"{journal.verb} was interrupted: the next apply or revert finishes it"
        report.findings.append(Finding("interrupted", message, str(workspace / FOLDER / "journal.json")))
    if state is None:
        return report
    if dist is None:
        absent = Tried(state.root, "the distribution that was applied is not there")
        what = "what the trees should be"
        report.not_checked.append(NotChecked(what, (absent,)))
        report.unseen.append(what)  # nothing was compared: a job must not take that for a pass
    for name, tree in sorted(state.trees.items()):
        if within is not None and os.path.isabs(tree.folder):
            tree = replace(tree, folder=f"{within}{tree.folder}")
        progress.note(f"reading {name}")
        report.counts["trees"] += 1
        report.add(_TreeCheck(workspace, name, tree, state, dist, report).findings())
    progress.finish()
    for skipped in state.skipped:  # they have no tree here: nobody may think that they were looked at
        tried = tuple(Tried(place, reason) for place, reason in skipped.tried)
        report.not_checked.append(NotChecked(f"{skipped.upstream}, which was skipped when it was applied", tried))
    unlike = unlike_profile(workspace, state, dist) if dist is not None else {}
    for name, what in sorted(unlike.items()):
        found = Finding("other-stack", f"{what}: {_AGAIN}", str(workspace / name), upstream=name)
        report.findings.append(found if name in state.trees else replace(found, rule="tree-missing"))
    if not state.trees:
        what = f"there is no tree of the profile {state.profile}" if state.profile else "no tree is applied any more"
        report.findings.append(Finding("tree-missing", f"{what}: nothing was verified", str(workspace)))
    return report


@dataclass(frozen=True)
class _TreeCheck:
    """One tree's part of it."""

    workspace: Path
    name: str
    state: TreeState
    whole: WorkspaceState
    dist: Distribution | None
    report: Report

    @property
    def tree(self) -> Tree:
        return Tree.of(self.workspace, self.name, self.state)

    @cached_property
    def tip(self) -> Files:
        """Every file of the last commit."""
        return self.tree.files(self.state.tip_commit)

    @cached_property
    def own_files(self) -> set[bytes]:
        """Every file that the tree should have: the last commit's and the generated ones."""
        return {*self.tip, *map(os.fsencode, self.state.generated)}

    def of_others(self) -> Iterator[tuple[bytes, str]]:
        """What lies in this tree where a package of another one is in a namespace (`megatron.core`), with the package."""
        if self.dist is None or self.state.kind != "managed":  # site-packages has all of them
            return
        for name in sorted(self.whole.trees.keys() - {self.name}):
            for package in (p for p in self.dist.upstream(name).packages if "." in p):
                module = package.replace(".", "/").encode() + b".py"
                found = [path for path, _ in shadows(self.tree.folder, (module,))]
                found += [module] if os.path.lexists(self.tree.folder / os.fsdecode(module)) else []
                yield from ((path, package) for path in found if path not in self.own_files)

    def findings(self) -> Iterator[Finding]:
        tree = self.tree
        for path, what in ((tree.folder, "the tree"), (tree.git_dir, "its repository")):
            if not path.is_dir():
                yield self.at("tree-missing", f"{what} is not there", path)
                return
        if tree.is_link:
            yield self.at("tree-missing", f"the folder is a link, to {os.readlink(tree.folder)}", tree.folder)
            return
        if tree.uninstalled:
            message = "the package is no longer installed there: `patchctl revert` forgets it"
            yield self.at("tree-missing", message, tree.folder / self.state.record)
            return
        try:
            yield from self.files()
            yield from self.record()
            yield from self.head()
            instead = dict(self.instead())
            yield from instead.values()
            yield from self.byte_code()
            yield from self.untracked(instead)
            yield from self.expected()
        except (SourceMismatch, BrokenRepository, GitFailed, OSError, ValueError) as error:
            if is_resource_error(error):
                raise
            what = error.what if isinstance(error, PatchctlError) else str(error)
            yield self.at("repository", f"it cannot be read: {what}", tree.git_dir)
        yield from self.generated()

    def record(self) -> Iterator[Finding]:
        """An installed package's RECORD: what it says of the stack's files is computed again."""
        state, tree = self.state, self.tree
        if state.record and not record_is_ours(tree, state.base_commit, state.tip_commit, state.generated):
            message = f"it does not list the files that apply left there: {_AGAIN} with --stash"
            yield self.at("record", message, tree.folder / state.record)

    def at(
        self, rule: str, message: str, path: Path | None = None, patch: str | None = None, level: Level = "error"
    ) -> Finding:
        return Finding(rule, message, str(path or self.tree.folder), None, level, self.name, patch)

    def files(self) -> Iterator[Finding]:
        """Every file, read and hashed, those that the stack deletes included.

        In an `--in-place` folder other modes and missing files are no difference (a wheel has neither modes nor tests), but for
        files that the stack changes.
        """
        tree, on_disk = self.tree, TreeFiles(self.tree.folder)
        tip = self.tip
        with ObjectReader(tree.git_dir, tree.name) as reader:
            moved = reader.changes(*(commit_tree(reader, c) for c in (self.state.base_commit, self.state.tip_commit)))
        self.report.counts["files"] += len(tip)
        differing = set(tree.differing(tip, tip.keys() | moved.before.keys()))
        differing |= {p for p in moved.after if on_disk.entry(p) is None}
        for path in sorted(differing):
            full = tree.folder / os.fsdecode(path)
            what = "differs from the stack's last commit" if os.path.lexists(full) else "is missing"
            what = what if path in tip else "is there, and the stack deletes it"
            yield self.at("file-changed", f"the file {what}", full)

    def head(self) -> Iterator[Finding]:
        operation = operation_in(self.tree)
        if operation is not None:
            message = f"{operation.name} is in progress, and giving it up brings other files back: {operation.way_out}"
            yield self.at("head-moved", message)
        if self.state.kind != "managed":
            return  # the owner's HEAD is his own
        head = self.tree.work.head()
        if head != self.state.tip_commit:
            message = f"HEAD is {head or 'nothing'}, the stack's last commit is {self.state.tip_commit}"
            yield self.at("head-moved", message)

    def instead(self) -> Iterator[tuple[bytes, Finding]]:
        """Files that Python imports in place of the stack's or beside them; git may ignore them."""
        for path, module in shadows(self.tree.folder, self.own_files):
            yield path, self.not_ours(path, f"and Python imports it in place of {os.fsdecode(module)}")
        for path, package in self.of_others():
            yield path, self.not_ours(path, f"and Python that starts here imports it in place of {package}")
        # The folder of an --in-place checkout is its owner's, and an installed package is next to all others.
        for path in additions(self.tree.folder, self.own_files) if self.state.kind == "managed" else ():
            yield path, self.not_ours(path, "and Python can import it")

    def not_ours(self, path: bytes, what: str) -> Finding:
        return self.at("untracked-file", f"the file is not the stack's, {what}", self.tree.folder / os.fsdecode(path))

    def byte_code(self) -> Iterator[Finding]:
        wrong, others = forged(self.tree.folder, self.own_files)
        for path in wrong:
            message = "Python takes this byte code in place of a file of the stack, of which it is no compilation"
            yield self.at("byte-code", message, self.tree.folder / os.fsdecode(path))
        if others:
            one = os.fsdecode(others[0])
            tried = Tried(one, f"run `patchctl verify` under that Python, or delete it: {len(others)} such files")
            self.report.not_checked.append(NotChecked(f"{self.name}: byte code of another Python than this", (tried,)))

    def untracked(self, hidden: Container[bytes]) -> Iterator[Finding]:
        if self.state.kind != "managed":
            return
        others = (p for p in self.tree.work.untracked() if p not in hidden and b"__pycache__/" not in p + b"/")
        found = [p for p in others if os.fsdecode(p) not in self.state.generated]
        for path in found[:_SHOWN_UNTRACKED]:
            full = self.tree.folder / os.fsdecode(path)
            yield self.at("untracked-file", "the file is not the stack's", full, level="note")
        if len(found) > _SHOWN_UNTRACKED:
            message = f"... and {len(found) - _SHOWN_UNTRACKED} more files that are not the stack's"
            yield self.at("untracked-file", message, level="note")

    def generated(self) -> Iterator[Finding]:
        for path, digest in sorted(self.state.generated.items()):
            found = TreeFiles(self.tree.folder).digest(path.encode())
            if found != digest:
                what = "is missing" if found is None else "was changed"
                yield self.at("generated-changed", f"the generated file {what}", self.tree.folder / path)

    def expected(self) -> Iterator[Finding]:
        """The state against the distribution, the lock and the stack function."""
        chosen = self.chosen()
        for left in self.state.left_out:
            if left.feature not in chosen:
                tried = (Tried(self.state.origin, left.reason),)
                self.report.not_checked.append(NotChecked(f"{self.name}: {left.feature}, which is left out", tried))
        if self.dist is None:
            return
        if (stack := self.dist.stacks.get((self.name, self.state.stack))) is None:
            yield self.at("other-patches", f"the distribution has no stack {self.state.stack} of {self.name} any more")
            return
        yield from self.base(stack)
        profile = self.profile
        if profile is None:
            applied = self.whole.profile is not None and bool(self.state.patches)
        else:
            applied = self.name in profile.stacks
        if not applied:  # after a revert, and for what another profile had, it is at its base
            if self.whole.profile is None and in_profile(self.state):
                yield self.at("wrong-tip", "the state names no profile, and the tree is not at its base")
            return
        try:
            patches = load_patches(self.dist, stack)
        except BadPatch as error:
            yield from_error("patch-file", error, str(self.tree.folder), self.name)
            return
        yield from self.unexplained(patches)
        out = {o.feature for o in self.state.left_out}
        yield from self.patches([p for p in patches if p.feature not in out])
        yield from self.declared(stack)
        yield from self.locked(self.dist, stack, frozenset(out))
        yield from self.built(patches, out)

    @property
    def profile(self) -> Profile | None:
        """The state's profile, as the distribution has it."""
        return self.dist.held(self.whole.profile, self.whole.release) if self.dist is not None else None

    def chosen(self) -> set[str]:
        """The features of this upstream that someone decided to leave out; the others could not be had."""
        asked = list(self.whole.without)
        asked += self.profile.without if self.profile is not None else []
        pairs = [feature.partition("@") for feature in asked]
        return {name for name, _, upstream in pairs if upstream in ("", self.name)}

    def unexplained(self, patches: Sequence[StackPatch]) -> Iterator[Finding]:
        """Features that no one chose to leave out, though the base has their files and nothing that they require is left out."""
        state, chosen = self.state, self.chosen()
        if state.record or self.profile is None:
            return  # the base is the package's: what was not in it then is not known
        gone = {(name, left.feature) for name, tree in self.whole.trees.items() for left in tree.left_out}
        skipped = {one.upstream for one in self.whole.skipped}
        form: Form = "git" if state.form == "git" else "sdist"
        base = Base(self.name, form, self.tree.git_dir, state.base_commit, state.base_tree, state.origin, 0)
        could = [p for p in patches if p.feature not in chosen]
        lacking = {p.feature for p, _ in missing_files(base, could)}
        for feature in sorted({left.feature for left in state.left_out} & {p.feature for p in could} - lacking):
            needs = {(u or self.name, f) for p in could if p.feature == feature for f, u in p.requires}
            if not needs & gone and not {u for u, _ in needs} & skipped:
                message = f"{feature} is left out, no one chose that, and the base has its files: {_AGAIN}"
                yield self.at("other-patches", message, patch=feature)

    def base(self, stack: Stack) -> Iterator[Finding]:
        """Form git: the pin's own commit. Form sdist: what the lock says, where it speaks."""
        state, pin = self.state, stack.pin
        base = state.pin_base or state.base_commit
        if state.form == "git" and base != pin.identity:
            yield self.at("wrong-base", f"the base is {base}, the pin is {pin.identity}: {_AGAIN}")
        if state.differing:
            yield self.own_base()
        with ObjectReader(self.tree.git_dir) as reader:
            for commit, tree in ((state.base_commit, state.base_tree), (state.tip_commit, state.tip_tree)):
                found = commit_tree(reader, commit)
                if found != tree:
                    yield self.at("wrong-base", f"commit {commit} has tree {found}, the state says {tree}")

    def own_base(self) -> Finding:
        """The files in which the base differs from the pin's, compared with its objects."""
        state = self.state
        with ObjectReader(self.tree.git_dir) as reader:
            found = reader.changes(*(commit_tree(reader, commit) for commit in (state.pin_base, state.base_commit)))
        differing = sorted(map(os.fsdecode, found.before.keys() | found.after.keys()))
        if differing != sorted(state.differing):
            return self.at("wrong-base", "the base differs from the pin in other files than the state says")
        some = ", ".join(differing[:3])
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        message = f"{some}{more} are not the pin's, and none of our patches changes them: what is proven was proven on the pin"
        return self.at("other-base", message, level="note")

    def patches(self, wanted: Sequence[StackPatch]) -> Iterator[Finding]:
        """The patches that the state records against those that the distribution has now."""
        now = {p.file.name: p for p in wanted}
        then: dict[str, AppliedPatch] = {a.file: a for a in self.state.patches}
        odd: list[tuple[str, str]] = []
        for file, patch in now.items():
            if file not in then:
                odd.append((patch.feature, f"{file} of the distribution is not applied"))
            elif then[file].digest != patch.digest:
                odd.append((patch.feature, f"{file} is another one now than when it was applied"))
        chosen = self.chosen()
        for file, applied in then.items():
            if applied.feature in chosen:
                odd.append((applied.feature, f"{file} is applied, and the profile leaves {applied.feature} out"))
            elif file not in now:
                odd.append((applied.feature, f"{file} is applied, and the distribution does not have it"))
        for feature, what in odd:
            yield self.at("other-patches", f"{what}: {_AGAIN}", patch=feature)

    def declared(self, stack: Stack) -> Iterator[Finding]:
        """What the manifest declares against what the state says was written.

        In an `--in-place` checkout a file that upstream's build had made before is the owner's: apply left it, and it is not
        in the state.
        """
        for file in stack.generated:
            path = self.tree.folder / file.path
            written = self.state.generated.get(file.path)
            if written is None and self.state.kind == "into":
                if not path.is_file():
                    yield self.at("generated-changed", "the generated file, which was the owner's, is missing", path)
            elif written != hashlib.sha256(file.content.encode()).hexdigest():
                yield self.at("generated-changed", f"the manifest generates another file here: {_AGAIN}", path)

    def built(self, patches: Sequence[StackPatch], out: set[str]) -> Iterator[Finding]:
        """The stack function, whatever the lock says: it may be as wrong as the tree."""
        state = self.state
        try:
            with ObjectReader(self.tree.git_dir) as reader:
                base_tree = commit_tree(reader, state.base_commit)
                builder = StackBuilder(reader, state.base_commit, base_tree)
                built = builder.build(patches, [p for p in patches if p.feature in out])
        except DoesNotApply as error:
            yield from_error("wrong-tip", error, str(self.tree.folder), self.name)
            return
        self.report.counts["stacks computed again"] += 1
        if built.tip_commit != state.tip_commit:
            message = (
                f"the distribution's patches give commit {built.tip_commit}, the tree has {state.tip_commit}: {_AGAIN}"
            )
            yield self.at("wrong-tip", message)

    def locked(self, dist: Distribution, stack: Stack, out: frozenset[str]) -> Iterator[Finding]:
        state = self.state
        try:
            lock = read_lock(dist.root, stack)
        except BadManifest as error:
            yield from_error("lock", error, str(lock_file(dist.root, self.name, stack.name)), self.name)
            return
        expected = lock.expected(state.form, out) if lock is not None else None
        if expected is None:
            return
        ids = ("base_commit", "base_tree", "tip_commit", "tip_tree")
        rows = [(one.replace("_", " "), getattr(state, one), getattr(expected, one)) for one in ids]
        if state.differing:
            rows = [("base commit", state.pin_base, expected.base_commit)]
        for name, have, wanted in rows:
            if have != wanted:
                rule = f"wrong-{name.partition(' ')[0]}"
                yield self.at(rule, f"the lock's {name} is {wanted}, the tree's {have}: {_AGAIN}")
