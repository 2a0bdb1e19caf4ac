"""Text and JSON output of `drift` and `outdated`. Computes nothing."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from patchctl.blame.line_owners import EditedTree
from patchctl.doc import Doc
from patchctl.drift.outdated import CONFLICTS, TAKEN, Companion, NewRevision, OutdatedStack
from patchctl.drift.saved import Appeared, Broke, News
from patchctl.drift.types import (
    ARRIVES,
    CONFLICT,
    EXACT,
    GONE,
    LOST,
    MOVED,
    NO_STACK,
    THREE_WAY,
    UNKNOWN,
    UPSTREAM,
    StackDrift,
)
from patchctl.errors import DONE, MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK
from patchctl.findings import Finding, Level, NotChecked
from patchctl.terminal.text import Style, abridged, counted, one_line, patch_count, visible_line

if TYPE_CHECKING:
    from patchctl.drift.api_diff import ApiChange
    from patchctl.drift.types import CallerDrift, FileDrift, HunkDrift, PatchDrift, ReleaseDrift


_SIGNS = {EXACT: "=", MOVED: "~", THREE_WAY: "3", UPSTREAM: "u", UNKNOWN: "?", CONFLICT: "x"}
_NAMED = 5
_LEGEND = "= exact  ~ moved  3 three-way  x conflict  u upstream has it  ? this source lacks the file  ! a name it calls changed"


def exit_code(stacks: Sequence[StackDrift]) -> int:
    """Return 0 if nothing is stale, 10 if no manual work is needed, else 20."""
    patches = [p for s in stacks for r in s.releases for p in r.patches]
    callers = _callers(stacks)
    if not callers and not any(p.stale for p in patches):
        return DONE
    settled = all(p.clean for p in patches) and all(c.proof is None for c in callers)
    return MOVES_CLEANLY if settled else SOMEBODY_HAS_TO_WORK


def _callers(stacks: Sequence[StackDrift]) -> list[CallerDrift]:
    return [c for s in stacks for r in s.releases for c in r.callers]


@dataclass(frozen=True)
class DriftOutput:
    """What `drift` prints."""

    stacks: Annotated[Sequence[StackDrift], Doc("results for stacks on other releases, in manifest order")]
    trees: Annotated[Sequence[EditedTree], Doc("with `--workspace`: trees of the workspace")]
    verdict: Annotated[
        int,
        Doc(
            "exit code: 0 nothing is stale, 10 no manual work needed, 20 manual work needed; 1 if a tree of the"
            " workspace differs"
        ),
    ]
    broke: Annotated[Sequence[Broke] | None, Doc("with `--baseline`: patches that newly fail", optional=True)] = None
    appeared: Annotated[
        Sequence[Appeared] | None, Doc("with `--baseline`: releases that the earlier run did not have", optional=True)
    ] = None


def drift_text(
    stacks: Sequence[StackDrift], news: News | None, style: Style, *, verbose: bool, mirrors: Sequence[str] = ()
) -> Iterator[str]:
    """Yield totals, a line per stack, those with work first, and what newly broke; then a table for a stack on several releases,
    and with `verbose` each patch of one on a single release. `mirrors`, NAME=URL, are where the run found the releases."""
    yield _summary(stacks, news, style)
    work = {id(stack): _work(stack) for stack in stacks}
    width = max((len(f"{s.upstream}/{s.stack}") for s in stacks), default=0)
    for stack in sorted(stacks, key=lambda s: not work[id(s)]):
        yield f"{f'{stack.upstream}/{stack.stack}':<{width}}  {_in_short(stack, work[id(stack)], style)}"
    for new in news.appeared if news else ():
        yield f"{style.note('new release')} {visible_line(new.release)} of {new.upstream}/{new.stack}: {_arriving(new)}"
    for one in news.broke if news else ():
        where = f"{one.upstream}/{one.stack} on {one.release}: {one.feature}"
        yield f"{style.bad('newly broken')} {visible_line(where)}: {one_line(one.why)}"
    if todo := [s for s in stacks if s.releases and _is_to_rebase(s.releases[-1])]:
        first = todo[0]
        found = [word for one in mirrors if one.startswith(f"{first.upstream}=") for word in ("--mirror", one)]
        last = first.releases[-1]
        words = ["rebase", f"{first.upstream}/{first.stack}", "--to", last.release, *found]
        if last.release == first.stack:
            yield f"{visible_line(last.release)} names another commit now, {last.commit[:12]}"
            words += ["--name", f"{first.stack}-{last.commit[:8]}"]
        yield f"next: patchctl {visible_line(shlex.join(words))}"
    for stack in stacks:
        yield from _stack(stack, style, verbose=verbose)
    if any(len(s.releases) > 1 for s in stacks):
        yield style(_LEGEND, dim=True)
    if not verbose and any(len(s.releases) == 1 for s in stacks):
        yield "-v adds each patch, with its files, hunks and names"


def _is_to_rebase(release: ReleaseDrift) -> bool:
    """Whether a patch is stale there, and the distribution has no stack of that revision."""
    return any(not p.clean and p.proof == NO_STACK for p in release.patches)


def _work(stack: StackDrift) -> list[str]:
    """The features that a person has to bring over or prove, and the patches of other upstreams whose calls changed."""
    stale = [p.feature for r in stack.releases for p in r.patches if not p.clean]
    return [*dict.fromkeys([*stale, *(c.name for r in stack.releases for c in r.callers if c.proof is not None)])]


def _in_short(stack: StackDrift, work: Sequence[str], style: Style) -> str:
    if stack.unavailable:
        return style.note("not looked at: its source cannot be had")
    if not stack.releases:
        return "nothing newer is named there; --against names revisions"
    names = [visible_line(r.release) for r in stack.releases]
    where = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} releases)"
    todo = f"; {style.bad('to do')}: {abridged([visible_line(name) for name in work], _NAMED)}" if work else ""
    return f"on {where}  {_states([stack]) or 'no patch'}{todo}"


def _stack(stack: StackDrift, style: Style, *, verbose: bool) -> Iterator[str]:
    """Yield why a stack was not looked at, or its table or patches; nothing where there is nothing more to say."""
    lines = [f"  tried {visible_line(t.place)}: {one_line(t.reason)}" for t in stack.unavailable]
    if len(stack.releases) == 1 and verbose:
        lines = [*_release(stack.releases[0], style)]
    elif len(stack.releases) > 1:
        lines = [*_table(stack)]
    if lines:
        yield ""
        yield style(f"{stack.upstream}/{stack.stack}", bold=True)
        yield from lines
    for line in stack.unseen:
        name, _, why = line.partition(": ")
        why = "; ".join(part.strip() for part in why.splitlines())
        yield style.note(f"  what {visible_line(name)} calls was not looked at: {one_line(why, 2000)}")


def _summary(stacks: Sequence[StackDrift], news: News | None, style: Style) -> str:
    nothing = "no patch to look at" if any(s.releases for s in stacks) else "nothing looked at"
    said = {
        DONE: style.good("nothing is stale"),
        MOVES_CLEANLY: style.good("what is stale is proven or settled there"),
        SOMEBODY_HAS_TO_WORK: style.bad("someone has to work"),
    }[exit_code(stacks)]
    new = "" if news is None else f"; {len(news.broke)} newly broken, {counted(len(news.appeared), 'new release')}"
    called = f", {n} of other upstreams stale" if (n := len(_callers(stacks))) else ""
    return f"{_states(stacks) or nothing}{called}: {said}{new}"


def _states(stacks: Sequence[StackDrift]) -> str:
    numbers = Counter(p.state for s in stacks for r in s.releases for p in r.patches)
    return ", ".join(f"{numbers[s]} {s}" for s in _SIGNS if numbers[s])


def _arriving(new: Appeared) -> str:
    how_many = "all" if new.arrive == new.patches else f"{new.arrive} of"
    return f"{how_many} {patch_count(new.patches)} arrive"


def _release(release: ReleaseDrift, style: Style) -> Iterator[str]:
    yield f"  on {visible_line(release.release)}  {release.commit[:12]}  ({release.form})"
    width = max((len(p.feature) for p in release.patches), default=0)
    for patch in release.patches:
        paint = style.good if not patch.stale else style.note if patch.state in ARRIVES else style.bad
        yield f"  {paint(f'{patch.state:<8}')}  {visible_line(patch.feature):<{width}}  {_proof(patch)}".rstrip()
        if patch.taken:
            yield f"            upstream had it in {visible_line(patch.taken)}, and has changed it since"
        for file in patch.files:
            yield from _file(file)
        yield from map(_call, patch.names)
    for caller in release.callers:
        proof = "settled there" if caller.proof is None else _lacking(caller)
        yield f"  {style.note('calls   ')}  {visible_line(caller.name)} of {visible_line(caller.stack)}  {proof}"
        yield from map(_call, caller.names)


def _call(one: ApiChange) -> str:
    return f"            calls {visible_line(one.name)}: {_change(one)}  ({visible_line(one.file)}:{one.line})"


def _proof(patch: PatchDrift) -> str:
    if not patch.stale or patch.state == UPSTREAM:
        return ""
    if patch.dropped is not None:
        return f"left out there: {one_line(patch.dropped)}"
    if patch.postponed is not None:
        return f"postponed there: {one_line(patch.postponed)}"
    if patch.proof is None:
        return "proven there" if patch.state in ARRIVES else "made anew and proven there"
    return _lacking(patch) if patch.state in ARRIVES else ""


def _lacking(one: PatchDrift | CallerDrift) -> str:
    return f"{'broken there' if one.broken else 'unproven'}: {one_line(one.proof or '')}"


def _change(one: ApiChange) -> str:
    if one.now is None:
        return "is gone"
    return f"was {one_line(one.was, 160)}, is {one_line(one.now, 160)}"


def _file(file: FileDrift) -> Iterator[str]:
    if file.state == EXACT:
        return
    target = f", moved to {visible_line(file.target)}" if file.target else ""
    yield f"            {visible_line(file.path)}: {file.state}{target}"
    for hunk in file.hunks:
        if hunk.state == LOST or hunk.commit or (hunk.by and len(file.hunks) <= 4):
            yield f"              line {hunk.at}: {_hunk(hunk)}"


def _hunk(hunk: HunkDrift) -> str:
    by = f" by {hunk.by:+d} lines" if hunk.by else ""
    return f"{hunk.state}{by}" + (f", by {hunk.commit[:12]} {one_line(hunk.subject or '')}" if hunk.commit else "")


def _table(stack: StackDrift) -> Iterator[str]:
    rows = [("", [visible_line(r.release) for r in stack.releases])]
    for same in zip(*(r.patches for r in stack.releases), strict=True):
        rows.append((same[0].feature, [_SIGNS[p.state] + ("!" if p.names else "") for p in same]))
    for name in dict.fromkeys(c.name for r in stack.releases for c in r.callers):
        rows.append((name, ["!" if any(c.name == name for c in r.callers) else "=" for r in stack.releases]))
    width = max(len(name) for name, _ in rows)
    columns = [max(2, len(r.release)) for r in stack.releases]
    for name, cells in rows:
        shown = "  ".join(f"{cell:<{w}}" for cell, w in zip(cells, columns, strict=True))
        yield f"  {visible_line(name):<{width}}  {shown}".rstrip()


def drift_findings(stacks: Sequence[StackDrift], news: News | None) -> list[Finding]:
    """Return patches that do not arrive, or are unproven there, at the hunk's line; with `news`, only what newly broke
    fails the run.
    """
    found = [f for s in stacks for r in s.releases for p in r.patches for f in _findings(s, r, p, news is None)]
    patches = {(s.upstream, s.stack, p.feature): p.patch for s in stacks for r in s.releases for p in r.patches}
    patches |= {(s.upstream, s.stack, c.name): c.patch for s in stacks for r in s.releases for c in r.callers}
    found += [f for s in stacks for r in s.releases for c in r.callers for f in _called(s, r, c, news is None)]
    for new in news.appeared if news else ():
        manifest = f"manifests/stacks/{new.upstream}/{new.stack}.yaml"
        message = f"{new.release} is new: {_arriving(new)}"
        found.append(Finding("drift-new", message, manifest, None, "note", new.upstream))
    for one in news.broke if news else ():
        message = f"{one.release}: {one.feature} broke: {one.why}"
        file = patches[one.upstream, one.stack, one.feature]
        found.append(Finding("drift-broke", message, file, upstream=one.upstream, patch=file))
    return found


def not_looked_at(stacks: Sequence[StackDrift]) -> list[NotChecked]:
    """Return the stacks whose source is unavailable."""
    missing = {f"{s.upstream} {s.stack}": s.unavailable for s in stacks if s.unavailable}
    return [NotChecked(f"drift of {name}", tried, name) for name, tried in missing.items()]


def _called(stack: StackDrift, release: ReleaseDrift, caller: CallerDrift, counts: bool) -> Iterator[Finding]:
    level: Level = "error" if counts and caller.proof is not None else "note"
    for one in caller.names:
        said = f"{stack.upstream} {release.release}: {one.file}:{one.line} calls {one.name}, which {_change(one)}"
        yield Finding("drift-name", said, caller.patch, None, level, caller.upstream, caller.patch)


def _findings(stack: StackDrift, release: ReleaseDrift, patch: PatchDrift, counts: bool) -> Iterator[Finding]:
    def row(rule: str, message: str, line: int | None = None, bad: bool = True) -> Finding:
        level = "error" if bad and counts else "note"
        said = f"{stack.upstream} {release.release}: {message}"
        return Finding(rule, said, patch.patch, line, level, stack.upstream, patch.patch)  # type: ignore[arg-type]

    for file in patch.files:
        if file.state in (GONE, UNKNOWN):
            said = f"{file.path} is {'gone' if file.state == GONE else 'not in this source'}"
            yield row(f"drift-{file.state}", said, bad=not patch.clean)
        elif file.state == CONFLICT:
            lost = [h for h in file.hunks if h.state == LOST]
            for hunk in lost:
                yield row("drift-lost", f"{file.path} line {hunk.at}: {_hunk(hunk)}", hunk.line, bad=not patch.clean)
            if not lost:
                yield row("drift-lost", f"{file.path} does not merge", bad=not patch.clean)
    if patch.state == UPSTREAM:
        yield row("drift-upstream", f"upstream has {patch.feature}: it can be dropped", bad=False)
    elif patch.stale and patch.state in ARRIVES:
        proof = "proven there" if patch.proof is None else _lacking(patch)
        yield row("drift-moved", f"{patch.feature} arrives ({patch.state}), {proof}", bad=not patch.clean)
    for one in patch.names:
        message = f"{one.file}:{one.line} calls {one.name}, which {_change(one)}"
        yield row("drift-name", message, bad=not patch.clean)


def edited_text(trees: Sequence[EditedTree], style: Style) -> Iterator[str]:
    """Yield how many files differ, and a diff of each, each hunk with the owners of the changed lines."""
    changed = sum(len(t.files) for t in trees)
    yield (
        f"{changed} of the files that were applied differ" if changed else style.good("unchanged since it was applied")
    )
    for tree in trees:
        if tree.problem is not None:
            yield f"{tree.upstream}: {style.bad('cannot be looked at')}: {visible_line(tree.problem)}"
        for file in tree.files:
            path = visible_line(f"{tree.folder}/{file.path}")
            yield style(path, bold=True) + ("" if file.hunks else f"  {style.bad(file.state)}")
            for hunk in file.hunks:
                head, *lines = hunk.diff
                yield f"{visible_line(head)} {style.note(', '.join(hunk.owners))}"
                yield from (visible_line(line) for line in lines)


def edited_findings(trees: Sequence[EditedTree]) -> list[Finding]:
    """Return one finding per hunk, and one per file without hunks."""
    found = [Finding("drift-tree", t.problem, t.folder, upstream=t.upstream) for t in trees if t.problem]
    for tree in trees:
        for file in tree.files:
            path = f"{tree.folder}/{file.path}"
            for hunk in file.hunks:
                message = f"lines of {', '.join(hunk.owners)} are not as they were applied"
                found.append(Finding("drift-edited", message, path, hunk.line, upstream=tree.upstream))
            if not file.hunks:
                found.append(Finding("drift-edited", f"the file is {file.state}", path, upstream=tree.upstream))
    return found


_LEAST = (EXACT, MOVED, TAKEN, CONFLICTS)


@dataclass(frozen=True)
class OutdatedOutput:
    """What `outdated` prints."""

    release: Annotated[str | None, Doc("release with these stacks; null if no release has all of them")]
    python: Annotated[str | None, Doc("Python version of the release; null if unspecified")]
    stacks: Annotated[Sequence[OutdatedStack], Doc("one entry per upstream, in manifest order")]
    stays: Annotated[
        Mapping[str, str], Doc("by upstream: why the release's manifest says that it stays at its stack")
    ] = field(default_factory=dict)


def outdated_text(found: OutdatedOutput, style: Style) -> Iterator[str]:
    """Yield a summary, what is new by stack, what the stacks' files ask of each other, and the next command."""
    new = [one for one in found.stacks if one.newer]
    where = f"release {found.release}: " if found.release else ""
    verb = "has" if 1 in (len(new), len(found.stacks)) else "have"
    yield style(f"{where}{len(new)} of {counted(len(found.stacks), 'upstream')} {verb} something newer", bold=True)
    width = max((len(n.name) for one in new for n in one.newer), default=0)
    held = {c.upstream: f"{one.upstream}/{one.stack}" for one in found.stacks for c in one.companions if c.pinned}
    for one in found.stacks:
        yield f"{one.upstream}/{one.stack}" + ("" if one.newer or one.unavailable else "  up to date")
        yield from (
            f"  {n.kind:<9}  {visible_line(n.name):<{width}}  {_effort(one, n, style)}".rstrip() for n in one.newer
        )
        yield from (
            style(f"  {visible_line(name)} runs on Python {visible_line(needs)}, not on {found.python}", dim=True)
            for name, needs in list(one.hidden.items())[-1:]
        )
        yield from (f"  tried {visible_line(t.place)}: {one_line(t.reason)}" for t in one.unavailable)
        if one.newer and one.upstream in found.stays:
            yield f"  stays: {one_line(found.stays[one.upstream])}"
        elif one.newer and one.upstream in held:
            yield f"  held: {held[one.upstream]} asks for the pinned one"
        yield from (f"  asks for {_companion(c, style)}" for c in one.companions)
    moving = [one for one in new if one.upstream not in found.stays]
    efforts = [(_LEAST.index(n.effort), one, n) for one in moving for n in one.newer if n.effort in _LEAST]
    if free := [row for row in efforts if row[1].upstream not in held]:
        _, one, first = min(free, key=lambda row: row[0])
        name = visible_line(first.name) + (" --source sdist" if first.archived else "")
        # What belongs together moves together, where all that is newer may move, and from git.
        together = (
            any(o.companions and n.kind == "release" for _, o, n in efforts)
            and 1 < len(new) == len(moving)
            and all(o.patches and not n.archived for _, o, n in efforts)
        )
        if not one.patches:
            todo = f"pin {one.upstream} {name}"
        elif found.release is None:
            todo = f"rebase {one.upstream}/{one.stack} --to {name}"
        else:
            todo = f"bump {found.release}" + ("" if together else f" --only {one.upstream}@{name}")
        yield f"next: patchctl {todo}"


def _effort(stack: OutdatedStack, new: NewRevision, style: Style) -> str:
    if new.effort is None:
        return ""
    if new.effort == CONFLICTS:
        some = ", ".join(new.work[:3]) + (", ..." if len(new.work) > 3 else "")
        return f"{style.bad(CONFLICTS)}  {len(new.work)} of {stack.patches}: {some}"
    return style.good(new.effort) if new.effort == EXACT else style.note(new.effort)


def _companion(one: Companion, style: Style) -> str:
    said = {True: style.good("pinned"), False: style.note("another pin"), None: "not known"}[one.pinned]
    return f"{one.upstream} {visible_line(one.revision)}  {said}"
