"""Text output of `apply`, `revert`, `status`, `identify` and `repair`. Computes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.language import joined, message, recalled, translated
from patchctl.terminal.text import Style, padded, patch_count, visible_line

if TYPE_CHECKING:
    from patchctl.identify.match import Identification, Identified
    from patchctl.stack.plan import Plan, PlannedStack
    from patchctl.workspace.apply import ApplyOutcome
    from patchctl.workspace.repair import Repair
    from patchctl.workspace.status import Status, TreeStatus


_SHOWN = 20
_EDITS = 5
_FORMS = {
    "complete": "complete",
    "package": "the packages alone, as they are installed",
    "sdist": "as in the source distribution",
    "part": "a part",
}
_PASSED_BY = "passed by (.git, __pycache__, environments, ...)"
# The state of a workspace keeps in English what `apply` said: why a feature is left out (stack/plan.py, stack/patches.py), and why a
# place did not have a source (source/*.py). What git or an index said itself is in none of these.
_REASONS = (
    message("package index"),
    message("no such folder"),
    message("not a git repository"),
    message("the run is offline"),
    message("no answer"),
    message("no answer within {seconds} s", seconds=""),
    message("{host} cannot be reached: {reason}", host="", reason=""),
    message("cannot be reached: {error}", error=""),
    message("pip's configuration has none (no-index)"),
    message("no source distribution is pinned for it"),
    message("the pin is a source distribution only and names no commit"),
    message("no remote in the manifest and no mirror given"),
    message("no commit {commit}", commit=""),
    message("bundle {path}", path=""),
    message("not included in form {form}", form=""),
    message("it has commit {commit}", commit=""),
    message("its sha256 is {digest}", digest=""),
    message("the archive in it has the sha256 {digest}", digest=""),
    message("the index states sha256 {digest}", digest=""),
    message("no archive of {name} {version} among its {count} files", name="", version="", count=""),
    message("left out with --without"),
    message("the profile {profile} leaves it out", profile=""),
    message("requires {feature}, which is left out", feature=""),
    message("not in the package installed in {folder}: {files}", folder="", files=""),
    message("not in the {form} of {upstream}: {files}", form="", upstream="", files=""),
)
_MODE = "its executable bit is not the pin's"


def plan_text(plan: Plan, outcome: ApplyOutcome, workspace: Path, style: Style, *, dry_run: bool) -> Iterator[str]:
    """Yield one line per upstream, then its patches; then what was left out or skipped, and where."""
    yield from _interrupted(outcome, style)
    for planned in plan.stacks:
        yield from _planned_text(planned, outcome, style, dry_run=dry_run)
    yield from _skipped([(s.upstream, [(t.place, t.reason) for t in s.tried]) for s in plan.skipped], style)
    for kept in plan.kept:
        tree = outcome.state.trees[kept.upstream]
        word = style.note(translated(message("kept as it was applied")))
        stays = message("{what}: its source cannot be had now", what=word)
        yield f"{kept.upstream:<12} {tree.stack}  {tree.form:<5}  {translated(stays)}"
        yield from (_tried(t.place, t.reason) for t in kept.tried)
    yield from _stashed(outcome.stashed)
    yield translated(_outcome(plan, outcome, workspace, dry_run=dry_run))


def revert_text(outcome: ApplyOutcome, style: Style) -> Iterator[str]:
    """Yield one line per tree that went back, and where edits are kept."""
    yield from _interrupted(outcome, style)
    for name in outcome.changed:
        tree = outcome.state.trees.get(name)
        word = style.good(translated(message("back at its base")))
        yield f"{name:<12} {word} {tree.base_commit[:12] if tree else ''}".rstrip()
    if not outcome.changed:
        yield translated(message("every tree is at its base already"))
    yield from _stashed(outcome.stashed)


def _interrupted(outcome: ApplyOutcome, style: Style) -> Iterator[str]:
    if outcome.finished:
        yield style.note(translated(message("finished an interrupted {verb} first", verb=outcome.finished)))
    if outcome.undone:
        undone = message("took an interrupted {verb} back first: its objects were damaged", verb=outcome.undone)
        yield style.note(translated(undone))


def _planned_text(planned: PlannedStack, outcome: ApplyOutcome, style: Style, *, dry_run: bool) -> Iterator[str]:
    word = message("unchanged")
    if planned.upstream in outcome.changed:
        word = message("would change") if dry_run else message("applied")
    differing = len(planned.own_base.differing) if planned.own_base else 0
    lock = style.note(translated(_unlocked(differing)))
    if planned.locked:
        lock = style.good(translated(message("as locked")))
    head = f"{planned.upstream:<12} {planned.stack.name}  {planned.base.form:<5}"
    count = translated(patch_count(len(planned.result.steps)))
    tip = translated(message("tip {commit}", commit=planned.result.tip_commit[:12]))
    tree = outcome.state.trees.get(planned.upstream)
    is_elsewhere = tree is not None and tree.kind == "into"
    where = f"  {translated(message('in {folder}', folder=visible_line(tree.folder)))}" if tree and is_elsewhere else ""
    yield f"{head}  {translated(word)}  {count}  {tip}  {lock}{where}"
    for step in planned.result.steps:
        yield f"    {step.commit[:12]}  {visible_line(step.patch.feature):<28} {visible_line(step.patch.header.subject)}"
    for omitted in planned.omitted:
        yield _left_out(visible_line(omitted.patch.feature), visible_line(omitted.reason), style)


def _left_out(feature: str, reason: str, style: Style) -> str:
    why = message("{what}: {more}", what=feature, more=reason)
    return f"    {style.note(translated(message('left out')))} {translated(why)}"


def _tried(place: str, reason: str) -> str:
    return (
        f"    {translated(message('tried {place}: {reason}', place=visible_line(place), reason=visible_line(reason)))}"
    )


def _stashed(stashed: Mapping[str, str]) -> Iterator[str]:
    """Yield where edits are kept, by upstream. A branch may be `BRANCH of PATH`."""
    for upstream, branch in stashed.items():
        name, _, path = branch.partition(" of ")
        kept = message("edits kept on branch {branch}", branch=branch)
        if path:
            kept = message("edits kept on branch {branch} of {path}", branch=name, path=path)
        yield f"{upstream:<12} {translated(kept)}"


def _outcome(plan: Plan, outcome: ApplyOutcome, workspace: Path, *, dry_run: bool) -> str:
    profile = plan.profile.name
    if plan.profile.release:
        profile = message("{profile} on release {release}", profile=profile, release=plan.profile.release)
    said = message("profile {profile} is in {workspace}", profile=profile, workspace=workspace)
    if dry_run:
        said = message("profile {profile} would be in {workspace}", profile=profile, workspace=workspace)
    if not outcome.moved_from:
        return said
    return message(
        "{what} (it was on {release}: --release {release} takes it there)", what=said, release=outcome.moved_from
    )


def _unlocked(differing: int) -> str:
    if not differing:
        return message("not in the lock")
    if differing == 1:
        return message("on another base: {count} file not the pin's", count=differing)
    return message("on another base: {count} files not the pin's", count=differing)


def status_text(status: Status, style: Style, python: str | None, *, verbose: bool) -> Iterator[str]:
    """Yield what a workspace holds: trees that are not as they should be first, a few of the files edited in each, and with
    `verbose` all of them, the patches, and where sources that could not be had were looked for."""
    if status.labels is not None:
        yield from (f"{name}={value}" for name, value in status.labels.items())
        return
    yield _headed(message("workspace"), status.workspace)
    # Without one it was reverted, or its first apply did not finish.
    first = status.interrupted == "apply" and not status.trees
    yield _headed(message("profile"), status.profile or (message("none yet") if first else message("none (reverted)")))
    if status.release:
        yield _headed(message("release"), status.release)
    if status.without:
        yield _headed(message("without"), joined(status.without))
    if status.interrupted:
        interrupted = message("{verb} was interrupted: the next apply or revert finishes it", verb=status.interrupted)
        yield style.bad(translated(interrupted))
    if status.profile and not status.trees:
        none = message("no tree is here: none of the profile's sources could be had when it was applied")
        yield style.bad(translated(none))
    yield from (f"{name:<12} {style.bad(visible_line(translated(what)))}" for name, what in status.lacking.items())
    width = max((len(tree.stack) for tree in status.trees), default=0)
    for tree in sorted(status.trees, key=lambda tree: tree.clean):
        yield from _status_of_tree(tree, style, width, verbose=verbose)
    tried = {s.upstream: s.tried if verbose else () for s in status.skipped}
    skipped = [(name, [(_recalled(place), _recalled(why)) for place, why in places]) for name, places in tried.items()]
    yield from _skipped(skipped, style)
    if todo := _next(status, python):
        yield translated(message("next: {command}", command=todo))


def _next(status: Status, python: str | None) -> str | None:
    """The command that tells more of edits, or mends the rest; None where nothing has to be done."""
    place = ["--workspace", status.workspace]
    if any(tree.uninstalled for tree in status.trees):
        words = ["revert", *place]
    elif any(tree.edits for tree in status.trees):
        words = ["drift", *place]
    elif status.clean and status.profile:
        return None
    elif python and all(tree.as_applied for tree in status.trees) and not (status.lacking or status.interrupted):
        words = ["install", *place, "--python", python]
    else:
        words = ["apply", "--profile", status.profile or "NAME", *place]
        words += ["--release", status.release] if status.release else []
        words += [f"--without={feature}" for feature in status.without]
    return visible_line(shlex.join(["patchctl", *words]))


def _recalled(text: str) -> str:
    return recalled(visible_line(text), _REASONS)


def _headed(label: str, text: str) -> str:
    return f"{padded(translated(label), 9)}  {translated(text)}"


def _status_of_tree(tree: TreeStatus, style: Style, width: int, *, verbose: bool) -> Iterator[str]:
    if tree.lock == "equal":
        lock = style.good(translated(message("as locked")))
    elif tree.tip_commit == tree.base_commit and not tree.differing:
        lock = translated(message("unpatched base"))
    elif tree.lock == "silent":
        lock = style.note(translated(_unlocked(len(tree.differing))))
    else:
        lock = style.bad(translated(tree.lock))
    where = f"  {translated(message('in {folder}', folder=tree.folder))}" if tree.kind == "into" else ""
    count = translated(patch_count(len(tree.patches)))
    yield f"{tree.upstream:<12} {tree.stack:<{width}}  {tree.form:<5}  {padded(count, 10)}  {tree.tip_commit[:12]}  {lock}{where}"
    if verbose:
        yield from (f"    {p.commit[:12]}  {p.feature}" for p in tree.patches)
    for one in tree.left_out:
        yield _left_out(one.feature, _recalled(one.reason), style)
    edits = tree.edits if verbose else tree.edits[:_EDITS]
    yield from (f"    {style.bad(translated(message('edited')))} {visible_line(path)}" for path in edits)
    if more := len(tree.edits) - len(edits):
        yield f"    {translated(message('and {count} more edited (-v lists them)', count=more))}"
    for what in filter(None, (tree.problem, tree.unlike_profile)):
        yield f"    {style.bad(visible_line(translated(what)))}"
    yield from (f"    {i.describe(style)}" for i in tree.imports or ())


def _skipped(skipped: list[tuple[str, list[tuple[str, str]]]], style: Style) -> Iterator[str]:
    for upstream, tried in skipped:
        skips = message("{what}: its source could not be had", what=style.note(translated(message("skipped"))))
        yield f"{upstream:<12} {translated(skips)}"
        yield from (_tried(place, reason) for place, reason in tried)


def identify_text(found: Identification, style: Style) -> Iterator[str]:
    """Yield one paragraph per pin, then the folder's other contents."""
    yield visible_line(found.folder)
    for tree in found.trees:
        yield from _tree(tree, style)
    if not found.trees:
        yield style.bad("no known pin") + ": nothing here is like a tree that this distribution knows"
        yield "    name the folder of one tree, one of its packages, or a site-packages folder"
    yield from _listed(style.bad("cannot be read"), found.unreadable)
    rest = [
        (found.others, "other file", "other files"),
        (found.build_outputs, "build output", "build outputs"),
        (found.links, "symbolic link (not followed)", "symbolic links (not followed)"),
        (found.passed_by, f"folder {_PASSED_BY}", f"folders {_PASSED_BY}"),
    ]
    words = [f"{count} {one if count == 1 else many}" for count, one, many in rest if count]
    if words:
        yield "beside that: " + ", ".join(words)


def _tree(tree: Identified, style: Style) -> Iterator[str]:
    is_part = f", below {visible_line(tree.at)}" if tree.at else ""
    head = f"{tree.upstream} {', '.join(tree.stacks)}  {tree.commit[:12]}"
    if tree.exact:
        yield f"{style.good('is')} {head}  {_FORMS[tree.form]}{is_part}"
    else:
        yield f"{style.bad('is not exactly')} {head}, the nearest pin  ({_FORMS[tree.form]}{is_part})"
    changed = tree.patched - tree.added
    patched = f", {changed} patched" if changed else ""
    patched += f"; and {tree.added} that patches add" if tree.added else ""
    yield f"    {tree.present} of {tree.listed} files are here: {tree.equal} as pinned{patched}"
    for patch in tree.patches:
        word = style.good("has") if patch.state == "wholly" else style.bad("has a part of")
        yield f"    {word} {patch.feature}  {patch.file}"
        yield from (f"        not in {visible_line(name)}" for name in patch.without[:_SHOWN])
    if not tree.lock:
        yield f"    {style.note('no lock')}: patched files cannot be told from changed ones; `patchctl lock` writes one"
    yield from _listed(style.bad("differs"), [f"{d.path}: {d.why}" for d in tree.differing])
    if not tree.exact:
        yield from _listed(style.bad("missing"), tree.missing)
        yield from _listed(style.note("mode"), [f"{name}: {_MODE}" for name in tree.modes])
    else:  # what an installed package normally lacks, without listing every file
        if tree.missing:
            first = visible_line(tree.missing[0])
            yield f"    {len(tree.missing)} files that are no modules are missing, the first is {first}"
        if tree.modes:
            first = visible_line(tree.modes[0])
            yield f"    {style.note('mode')} of {len(tree.modes)} files: {_MODE}; the first is {first}"
    yield from _listed(style.bad("extra"), [f"{name}: not the pin's, and would be imported" for name in tree.extra])
    yield from (f"    {style.bad('fits as well')}: {rival}" for rival in tree.rivals)


def _listed(word: str, lines: Sequence[str]) -> Iterator[str]:
    yield from (f"    {word} {visible_line(line)}" for line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield f"    {word} ... and {len(lines) - _SHOWN} more (--json has all)"


def repair_text(result: Repair, style: Style, *, dry_run: bool) -> Iterator[str]:
    """Yield the problems, the result for each tree, and the location of kept files."""
    for seen in result.found:
        yield f"{style.bad(seen.kind)}  {visible_line(seen.message)}  ({visible_line(seen.place)})"
    words = {
        "base": style.good("at its base"),
        "aside": style.note("moved aside whole: it cannot be made from here"),
        "left": style.note("left as it is, and no longer ours"),
        "gone": "no longer there",
    }
    for tree in result.trees:
        yield f"{tree.name:<12} {words[tree.outcome]}  in {visible_line(tree.folder)}"
    yield from (f"kept aside   {visible_line(path)}" for path in result.kept)
    if result.healthy:
        yield f"{visible_line(result.workspace)} is healthy: nothing was changed"
    elif dry_run:
        yield "nothing was changed: repair without --dry-run mends it"
