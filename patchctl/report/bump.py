"""The plan, result and remaining work of `bump`: text, JSON, and the Markdown of a change request. Computes nothing."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from patchctl.bump import BumpState, PatchClass, StackMove
from patchctl.doc import Doc
from patchctl.terminal.text import Style, counted, one_line, visible_line

# The body of a change request holds 65,536 characters.
_DIFF_CHARS = 12_000
_MERGED = {"resolved": ", resolved by hand", "replayed": ", from a recorded resolution"}


@dataclass(frozen=True)
class BumpStop:
    """The patch that a person has to merge."""

    upstream: Annotated[str, Doc("its upstream")]
    feature: Annotated[str, Doc("its feature")]
    files: Annotated[
        Mapping[str, str], Doc("by file in conflict: what is wrong with it; empty if nothing is left of the patch")
    ]
    reason: Annotated[str, Doc("what upstream has of it, or its `Drop-When`")] = ""


@dataclass(frozen=True)
class BumpOutput:
    """What `bump` prints."""

    release: Annotated[str, Doc("release that the bump starts from")]
    new: Annotated[str, Doc("name of the new release")]
    moves: Annotated[Sequence[StackMove], Doc("stacks to move")]
    status: Annotated[str, Doc("`dry run`, `nothing to move`, `stopped`, `done` or `aborted`")]
    efforts: Annotated[Mapping[str, str], Doc("dry run: effort of each upstream's move, as in `outdated`")] = field(
        default_factory=dict
    )
    states: Annotated[
        Mapping[str, Mapping[str, str]], Doc("dry run: state of each patch on the target by feature, as in `drift`")
    ] = field(default_factory=dict)
    stop: Annotated[BumpStop | None, Doc("stopped: patch that needs manual work")] = None
    stacks: Annotated[Mapping[str, str], Doc("new stack of each upstream, as far as the bump has come")] = field(
        default_factory=dict
    )
    patches: Annotated[
        Mapping[str, Sequence[PatchClass]],
        Doc("comparison of each patch with the old stack, by upstream that has arrived"),
    ] = field(default_factory=dict)
    red: Annotated[Sequence[str], Doc("stopped: failed proofs, one per line")] = ()
    open: Annotated[
        Sequence[str], Doc("requirements that did not arrive, and upstream names that changed and patches use")
    ] = ()
    requirements: Annotated[
        Sequence[str],
        Doc(
            "stopped, done: what the new stacks' files of requirements ask for and did not, and what went, one per line"
        ),
    ] = ()
    imports: Annotated[
        Sequence[str], Doc("stopped, done: modules that a new pin imports, did not before, and that nothing provides")
    ] = ()
    unavailable: Annotated[
        Mapping[str, str],
        Doc("`--skip-unavailable`: upstreams that stay because their sources cannot be had, with the reason"),
    ] = field(default_factory=dict)
    apart: Annotated[
        Sequence[str],
        Doc("revisions of other upstreams that files of the release's stacks name and it has not, one per line"),
    ] = ()
    unmade: Annotated[
        Sequence[str], Doc("files of new stacks that no program could make here, each with the command and the reason")
    ] = ()
    by_hand: Annotated[
        Sequence[str], Doc("done: what only a person can do for the new stacks, each with the command")
    ] = ()
    left: Annotated[Sequence[str], Doc("done: what `verify --static` finds, one per line")] = ()
    branch: Annotated[str | None, Doc("`--branch`: the branch that holds what the bump wrote")] = None
    report: Annotated[Path | None, Doc("done, stopped: path of the Markdown report for a change request")] = None

    @property
    def unproven(self) -> Annotated[list[str], Doc("done: features without a proof, as FEATURE@UPSTREAM")]:
        return [f"{p.feature}@{u}" for u, rows in self.patches.items() for p in rows if p.proof is not None]

    @property
    def met(
        self,
    ) -> Annotated[list[str], Doc("patches that may go: FEATURE@UPSTREAM, and the `Drop-When` that is met")]:
        return [f"{p.feature}@{u}: {p.met}" for u, rows in self.patches.items() for p in rows if p.met is not None]

    def lists(self) -> Iterator[tuple[str, str, Sequence[str]]]:
        """Yield what a person has to know beside the patches: the title in the report, the word on a terminal, and the lines."""
        yield "Stays, as its sources could not be had", "stays", [*self.unavailable.values()]
        yield "Belongs together and is apart", "apart", self.apart
        yield "Requirements that changed", "requirement", self.requirements
        yield "Imports that nothing provides", "import", self.imports
        yield "Drop-When met", "may go", self.met
        yield "To look at", "look at", self.open
        yield "Red proofs", "red", self.red
        yield "Could not be made here", "not made", self.unmade
        yield "Left to do", "left", self.left
        yield "By hand", "by hand", self.by_hand


def moves_text(
    state: BumpState, style: Style, efforts: Mapping[str, str], states: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield the moves, each with its effort and its patches by state."""
    yield style(f"{state.release} to {state.new}: {counted(len(state.moves), 'upstream')} to move", bold=True)
    width = max((len(f"{m.upstream}/{m.stack}") for m in state.moves), default=0)
    for move in state.moves:
        to = f"{visible_line(move.to)}  {efforts[move.upstream]}"
        yield f"  {f'{move.upstream}/{move.stack}':<{width}}  {to}  ({visible_line(move.why)})"
        for word, number in Counter(states[move.upstream].values()).items():
            names = ", ".join(feature for feature, state in states[move.upstream].items() if state == word)
            yield f"    {word}: {number}, {names}"
    yield from (style.bad(f"  stays: {one_line(why)}") for why in state.unavailable.values())
    yield from (style.note(f"  apart: {one_line(what)}") for what in state.apart)
    if not state.moves:
        yield "`patchctl outdated` says what is newer; --only UPSTREAM moves one that no other upstream's files name"


def aborted_text(state: BumpState, held: Sequence[str], style: Style) -> Iterator[str]:
    """Yield what is forgotten, and what stays: stacks that have arrived, and the folder of a rebase that had stopped."""
    yield style(f"the bump to {state.new} is given up", bold=True)
    if state.branch is not None:
        yield f"what has arrived stays on branch {state.branch.name}"
    elif arrived := [f"{u}/{stack}" for u, stack in state.stacks.items() if u in state.merges]:
        yield f"stays: {', '.join(arrived)}"
    for folder in held:
        yield f"a rebase is under way in {folder}: `patchctl rebase --dir {shlex.quote(folder)} --abort` takes it back"


def bump_text(found: BumpOutput, style: Style) -> Iterator[str]:
    """Yield the new release, its patches by class, failed or missing proofs, and what comes next."""
    yield style(
        f"release {found.new} is written: {found.release} with {counted(len(found.stacks), 'new stack')}", bold=True
    )
    for upstream, stack in found.stacks.items():
        numbers = Counter(p.kind for p in found.patches[upstream])
        yield f"  {upstream}/{stack}: " + ", ".join(f"{number} {kind}" for kind, number in numbers.items())
    for _, word, lines in found.lists():
        yield from (style.bad(f"  {word}: {one_line(line)}") for line in lines)
    if found.red:
        yield "next: mend what is red, then `patchctl bump --continue`, which proves what is not on record; with --no-prove it ends"
    elif found.unproven:
        yield f"not proven: {', '.join(found.unproven)}"
        yield f"next: patchctl prove --all --release {found.new}"
    yield f"report {found.report}"


def stopped_text(found: BumpOutput, style: Style) -> Iterator[str]:
    """Yield the files that could not be made, with commands, else the modules that nothing provides; and the way on."""
    what = "imports that nothing provides"
    todo = "add a requirement or a patch that provides them, or nothing if they are not needed"
    if found.unmade:
        what, todo = "files that could not be made here", "run these commands, or name the Python that can"
    yield style.bad(f"stopped: {what}")
    yield from (f"  {one_line(line)}" for line in found.unmade or found.imports)
    yield f"next: {todo}; `patchctl bump --continue`"


def report_markdown(found: BumpOutput, range_diffs: Mapping[str, str]) -> str:
    """Return the body of a change request: what moved, how each patch fared, and git's range-diff of each stack, folded."""
    lines = [f"# {found.release} to {found.new}", "", "| upstream | from | to | why |", "|---|---|---|---|"]
    lines += [
        f"| {m.upstream} | {m.stack} | {found.stacks.get(m.upstream, '-')} | {_cell(m.why)} |" for m in found.moves
    ]
    for upstream, rows in found.patches.items():
        lines += ["", f"## {upstream}", "", "| feature | patch | proof |", "|---|---|---|"]
        for row in rows:
            gone = row.kind in ("dropped", "postponed")
            kind = f"{row.kind}: {_cell(row.reason or '')}" if gone else row.kind + _MERGED.get(row.merge or "", "")
            proof = "-" if gone else "proven" if row.proof is None else f"not proven: {_cell(row.proof)}"
            lines.append(f"| {row.feature} | {kind} | {proof} |")
    if found.stop is not None:
        lines += ["", f"## Stopped at {found.stop.feature} of {found.stop.upstream}", ""]
        lines += [f"- `{path}`: {_cell(why)}" for path, why in found.stop.files.items()]
        lines += [] if found.stop.files else [f"- nothing is left of it: {_cell(found.stop.reason)}"]
        todo = "resolve, `git add`" if found.stop.files else "`patchctl rebase --skip` in it"
        lines += [
            "",
            "The work tree, with the other patches to come, is in `edit/` (of a CI job in its artifact, `edit.tar.gz`):"
            f" {todo}, `patchctl bump --continue`.",
        ]
    for title, _, some in found.lists():
        lines += ["", f"## {title}", "", *(f"- {_cell(line)}" for line in some)] if some else []
    for upstream, text in range_diffs.items():
        cut = "\n(cut here; the whole is beside the work tree)" if len(text) > _DIFF_CHARS else ""
        head = f"<details><summary>range-diff of {upstream}</summary>"
        lines += ["", head, "", "````diff", text[:_DIFF_CHARS].rstrip() + cut, "````", "", "</details>"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")
