"""Answers on a node, in its own process beside the Ray worker, with the patchctl and the distribution that were sent.

Does not trust the workspace's state: trees are computed from their files.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from patchctl import extension
from patchctl.check.workspace import verify_workspace
from patchctl.cluster.facts import (
    CACHE,
    DISTRIBUTION,
    SPAWNED,
    WORKER,
    Failed,
    MachineFacts,
    NodeFacts,
    NodeFault,
    Request,
    SeenPackage,
    TreeFacts,
)
from patchctl.errors import PatchctlError
from patchctl.findings import Finding, Report
from patchctl.git.objects import TreeBuilder
from patchctl.manifest.default_roots import MARKER
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.files import distribution_digest
from patchctl.manifest.lock import lock_digest
from patchctl.manifest.typeinfo import build
from patchctl.os_errors import user_error_or_none
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line, redact_text, visible_line
from patchctl.workspace.imports import find_imports
from patchctl.workspace.state import TreeState, load_state
from patchctl.workspace.status import Status, TreeStatus, read_status
from patchctl.workspace.tree_files import TreeFiles
from patchctl.workspace.trees import Tree

Probe = Callable[[Request, str, Path, Distribution], MachineFacts]
"""An extension's probe of a node: request, training's interpreter, workspace, distribution."""
_MOST_FAULTS = 20  # per rule and tree, to keep answers small
_WATCH_SECONDS = 1.0
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "tmpfs", "ramfs", "squashfs", "vfat"}
)


def main() -> None:
    """Read the request from standard input and print the answer, as JSON."""
    _end_with(os.getppid())
    given = json.load(sys.stdin)
    facts = answer(build(Request, given["request"]), given["here"], Path(sys.argv[2]))
    json.dump({"facts": asdict(facts)}, sys.stdout)


def _end_with(parent: int) -> None:
    """Exit when the parent worker is gone, so that an interrupted run writes nothing afterwards."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def answer(request: Request, here: dict[str, Any], place: Path) -> NodeFacts:
    """Return the facts of this node. `here` comes from the worker; `place` is where the payload was unpacked."""
    began = time.monotonic()
    workspace = Path(here["workspace"])
    facts = NodeFacts(
        host=here["host"],
        workspace=str(workspace),
        identity=_identity(workspace),
        python=here["python"],
        python_version=here["python_version"],
        ray=here["ray"],
        interpreter=request.python or here["python"],
        packages={},
        environment={
            # Without credentials, and without the workspace's folder, which may differ per node.
            name: None if value is None else redact_text(value).replace(str(workspace), "WORKSPACE")
            for name, value in here["environment"].items()
        },
    )
    if request.verb == "look":
        return facts
    try:
        dist = Distribution.load(place / DISTRIBUTION, place / CACHE)
        if request.machine is not None:
            probe: Probe = extension.load(next(name for one in extension.registered() for name in one.probe))
            facts = replace(facts, machine=probe(request, facts.interpreter, workspace, dist))
        elif request.apply is not None:
            facts = _applied(facts, request, dist, workspace, place)
        else:
            facts = _held(replace(facts, packages=_packages(request, facts.interpreter)), request, dist, here["views"])
    except PatchctlError as error:
        what = "; ".join(visible_line(line.strip()) for line in str(error).splitlines())
        facts = replace(facts, failed=Failed(error.kind, error.code, what, error.hint))
    except ModuleNotFoundError as error:
        what = f"this node's Python has no module {error.name}, which is required"
        hint = f"install it into {sys.executable}, or send the sources with --bundle"
        facts = replace(facts, failed=Failed("usage", 2, what, hint))
    except OSError as error:
        refusal = user_error_or_none(error)
        if refusal is None:
            raise
        facts = replace(facts, failed=Failed(refusal.kind, refusal.code, one_line(str(refusal)), refusal.hint))
    return replace(facts, seconds={**facts.seconds, "patchctl": time.monotonic() - began})


def _identity(workspace: Path) -> list[str]:
    """Return an id that is equal on nodes that see the same folder of a network file system, whatever its path.

    Consists of inode, ctime in nanoseconds, and the part of the path that does not exist yet; device numbers differ
    between nodes. For a local file system it includes the machine, since images of one disk have equal inodes and
    times.
    """
    missing: list[str] = []
    folder = workspace
    while not folder.exists() and folder != folder.parent:
        missing.append(folder.name)
        folder = folder.parent
    found = folder.stat()
    return [_machine_of(found.st_dev), str(found.st_ino), str(found.st_ctime_ns), "/".join(reversed(missing))]


def _machine_of(device: int) -> str:
    """Return this machine's boot id for a device of a local file system, else "". Containers share it."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = {line.partition(" - ")[2].split(" ")[0] for line in mounts if line.split(" ")[2] == number}
    return boot if kinds and kinds <= _LOCAL else ""


def _packages(request: Request, interpreter: str) -> dict[str, str | None]:
    """Return the versions that this node has of a profile's requirements."""
    from patchctl.doctor.runtime import SYSTEM, Interpreter

    python = Interpreter(interpreter, [d for d in request.requirements.values() if d])
    found: dict[str, str | None] = {}
    for name, distribution in request.requirements.items():
        if distribution:
            found[name] = python.installed(distribution)
        elif name == "python":
            found[name] = python.version
        elif name in SYSTEM:
            found[name] = SYSTEM[name](Path("/"))[0]
    return found


def _held(facts: NodeFacts, request: Request, dist: Distribution, views: dict[str, Any]) -> NodeFacts:
    workspace = Path(facts.workspace)
    state = load_state(workspace)
    unseen = {view: found["error"] for view, found in views.items() if "error" in found}
    facts = replace(facts, unseen=unseen)
    if state is None:
        return facts
    began = time.monotonic()
    status = read_status(workspace, dist, None)
    read = time.monotonic()
    report = Report([*_from(status)])
    if request.verb == "verify":
        report = verify_workspace(workspace, dist, Progress())
    root, profile = Path(state.root), dist.held(state.profile, state.release)
    try:
        own_digest = distribution_digest(root) if (root / MARKER).is_file() else None
    except OSError:
        own_digest = None
    trees = [_tree(workspace, t, state.trees[t.upstream], report) for t in status.trees]
    seen = [s for t in status.trees for s in _seen(request, t, dist, views)]
    return replace(
        facts,
        applied=True,
        profile=state.profile,
        without=list(state.without),
        root=state.root,
        trees=trees,
        seen=seen,
        lock_digest=lock_digest(root, dist.stacks_of(profile).values()) if profile else None,
        distribution_digest=own_digest,
        faults=list(_faults(report, workspace)),
        not_checked=[f"{n.what}: {'; '.join(f'{t.place} ({t.reason})' for t in n.tried)}" for n in report.not_checked],
        seconds={"status": read - began, "verify": time.monotonic() - read},
        release=state.release,
    )


def _from(status: Status) -> Iterator[Finding]:
    """Convert what `status` finds into findings of `verify`."""
    if status.interrupted:
        message = f"{status.interrupted} was interrupted: the next apply or revert finishes it"
        yield Finding("interrupted", message, status.workspace)
    for name, what in status.lacking.items():
        yield Finding("tree-missing", what, status.workspace, upstream=name)
    for tree in status.trees:
        if tree.unlike_profile:
            yield Finding("other-stack", tree.unlike_profile, tree.folder, upstream=tree.upstream)
        for path in tree.edits:
            message = "the file differs from the stack's last commit"
            yield Finding("file-changed", message, f"{tree.folder}/{path}", upstream=tree.upstream)
        if tree.lock not in ("equal", "silent"):
            yield Finding("wrong-tip", tree.lock, tree.folder, upstream=tree.upstream)
        if not os.path.isdir(tree.folder):
            yield Finding("tree-missing", "the tree is not there", tree.folder, upstream=tree.upstream)
        elif tree.problem:
            rule = "head-moved" if tree.problem.startswith("HEAD is") else "repository"
            yield Finding(rule, tree.problem, tree.folder, upstream=tree.upstream)


def _tree(workspace: Path, status: TreeStatus, state: TreeState, report: Report) -> TreeFacts:
    changed = [f.file for f in report.findings if f.upstream == status.upstream and f.rule == "file-changed"]
    try:
        there = os.path.isdir(status.folder)
        found = _tree_on_disk(Tree.of(workspace, status.upstream, state), state, changed) if there else None
    except (PatchctlError, OSError, ValueError, KeyError):
        found = None
    return _tree_facts(status.upstream, status, found, status.lock)


def _tree_facts(upstream: str, of: TreeStatus | TreeState, tree: str | None, lock: str) -> TreeFacts:
    left_out = sorted(one.feature for one in of.left_out)
    tip = of.tip_commit, of.tip_tree
    return TreeFacts(upstream, of.stack, of.form, of.folder, *tip, tree, len(of.patches), left_out, lock)


def _tree_on_disk(tree: Tree, state: TreeState, changed: list[str]) -> str:
    """Return the id of the tree on disk: the commit's files, with changed ones as they are."""
    builder = TreeBuilder(tree.files(state.tip_commit))
    on_disk = TreeFiles(tree.folder)
    top = len(os.fsencode(tree.folder)) + 1
    for path in (os.fsencode(full)[top:] for full in changed):
        entry = on_disk.entry(path)
        if entry is not None and entry.id:
            builder.put(path, entry)
        else:
            builder.remove(path)
    return builder.write()


def _seen(request: Request, tree: TreeStatus, dist: Distribution, views: dict[str, Any]) -> Iterator[SeenPackage]:
    """Yield the tree's packages in every view."""
    packages = request.packages.get(tree.upstream, {})
    for view in (WORKER, SPAWNED):
        found = views.get(view, {})
        for name, inner in packages.items():
            if name in found:
                place, error, version = found[name]
                wanted = (Path(tree.folder) / inner).resolve()
                ours = place is not None and wanted in (Path(place).resolve(), *Path(place).resolve().parents)
                yield SeenPackage(view, tree.upstream, name, place, ours, version, error and one_line(error))
    if request.python is not None:
        for one in find_imports(request.python, tree.upstream, Path(tree.folder), dist):
            yield SeenPackage("python", tree.upstream, one.package, one.place, one.ours, None, one.error)


def _faults(report: Report, workspace: Path) -> Iterator[NodeFault]:
    """Yield the findings with files below the workspace, limited per kind."""
    counted: Counter[tuple[str, str | None]] = Counter()
    top = f"{workspace}/"
    for found in report.sorted():
        counted[found.rule, found.upstream] += 1
        if counted[found.rule, found.upstream] <= _MOST_FAULTS:
            file = visible_line(found.file.removeprefix(top))
            message = one_line(found.message.replace(top, ""), 1000)
            yield NodeFault(found.rule, message, file, found.level, found.upstream)
    for (rule, upstream), count in counted.items():
        if count > _MOST_FAULTS:
            severity = next(f.level for f in report.findings if f.rule == rule)
            yield NodeFault(rule, f"... and {count - _MOST_FAULTS} more", upstream or "", severity, upstream)


def _applied(facts: NodeFacts, request: Request, dist: Distribution, workspace: Path, place: Path) -> NodeFacts:
    """Run `apply` here, or with the verb preview everything except writing."""
    from patchctl.stack.plan import make_plan, select
    from patchctl.workspace.apply import apply_plan, preview
    from patchctl.workspace.current import current_state
    from patchctl.workspace.journal import read_journal
    from patchctl.workspace.tree_repair import repair_marker

    options = request.apply
    assert options is not None and request.profile is not None
    chosen = dist.held(request.profile, options.release) or dist.profile(request.profile)
    plan = make_plan(
        dist,
        select(dist, chosen, options.without),
        _sources(request, place),
        Progress(),
        without=options.without,
        skip_unavailable=options.skip_unavailable,
        current=current_state(workspace, dist, {}),
    )
    run = apply_plan if request.verb == "apply" else preview
    if run is preview and not repair_marker(workspace).exists() and (journal := read_journal(workspace)) is not None:
        # A dry run cannot look behind what was interrupted, and this one's apply ends it first.
        return replace(facts, changed=[f"{journal.verb} that was interrupted"], release=chosen.release)
    outcome = run(workspace, plan, Path(request.root), {}, stash=options.stash)
    trees = sorted(outcome.state.trees.items())
    skipped = [f"{s.upstream}: {'; '.join(f'{p} ({r})' for p, r in s.tried)}" for s in outcome.state.skipped]
    return replace(
        facts,
        applied=True,
        profile=outcome.state.profile,
        without=list(outcome.state.without),
        trees=[_tree_facts(name, t, None, "equal" if t.locked else "silent") for name, t in trees],
        changed=[*outcome.changed, *([f"release {outcome.moved_from} before"] if outcome.moved_from else [])],
        stashed=dict(outcome.stashed),
        not_checked=skipped,
        release=outcome.state.release,
    )


def _sources(request: Request, place: Path) -> Any:
    """Return the node's own configuration and cache, with the command line's options first."""
    from patchctl.bundle.reader import open_bundle
    from patchctl.source.cache import cache_root
    from patchctl.source.config import read_user_config
    from patchctl.source.types import SourceOptions

    options = request.apply
    assert options is not None
    config = read_user_config()
    names = {*options.mirrors, *config.mirrors}
    mirrors = {n: [*options.mirrors.get(n, ()), *config.mirrors.get(n, ())] for n in names}
    bundle = open_bundle(place / "bundle.tar", options.bundle_sha256) if options.bundle_sha256 else None
    return SourceOptions(
        source=options.source,
        mirrors=mirrors,
        offline=options.offline or bundle is not None,
        cache=cache_root(configured=config.cache).absolute(),
        bundle=bundle,
    )
