"""An import from end to end: mails, diffs, base, exact application, our format, proof, and only then the distribution.

All patches are on the disk before the stack's manifest names the first. They are written and synchronised in a hidden folder
beside the stack's, moved from there by rename, and the manifest is replaced last. A run that is killed before that leaves a
stack without any of them; the same import, run again, goes on.

A foreign commit's message becomes a patch header with a line marked by `MARKER` for everything that our lint wants and the mail
lacks: the lint rule `filled-in`, and so `verify`, names every such line until someone has filled it in.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from patchctl.atomic import drop_empty, make_folder, own_like, replace_file, sync_folder
from patchctl.doc import Doc
from patchctl.errors import LocalEdits, PatchctlError, SourceUnavailable
from patchctl.git.catfile import ObjectReader
from patchctl.git.history import CommitInfo
from patchctl.git.objects import Files, TreeBuilder
from patchctl.git.pack import bring_pack
from patchctl.git.worktree import create_git_dir
from patchctl.importing.changes import Foreign, read_diff
from patchctl.importing.collect import collect, in_order
from patchctl.importing.mails import check_words, read_mail
from patchctl.importing.match_base import BaseMatch, Matched, NoBase, PinFiles, Target, describe, find_target
from patchctl.importing.types import ImportFault, ImportRefused, Left, Mail, Message, Notebook, Options
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.files import rewrite_patches
from patchctl.manifest.load import loads
from patchctl.manifest.series import place_of
from patchctl.manifest.types import Stack
from patchctl.manifest.yamltree import plain
from patchctl.os_errors import error_type
from patchctl.patch.header import Header, parse_header
from patchctl.patch.parse import Patch
from patchctl.patch.write import render_patch
from patchctl.scratch import scratch, sweep
from patchctl.source.obtain import obtain, obtain_form
from patchctl.source.types import Base, SourceOptions
from patchctl.stack.build import StackBuilder
from patchctl.stack.export import Exported, export_commits, write_stack
from patchctl.stack.patches import StackPatch, load_patch
from patchctl.stack.plan import build_stack, load_patches
from patchctl.stack.result_cache import Built, StackResult
from patchctl.terminal.progress import Progress


@dataclass(frozen=True)
class Imported:
    """A mail and the patch made from it."""

    source: Annotated[str, Doc("path of the mail, with `#N` for the Nth mail of an mbox")]
    file: Annotated[str, Doc("resulting patch file")]
    feature: Annotated[str, Doc("feature name")]
    subject: Annotated[str, Doc("subject line")]
    author: Annotated[str, Doc("author name and e-mail address, as in the mail")]
    notes: Annotated[tuple[str, ...], Doc("repairs made to the mail, and the path prefix removed")]
    open_lines: Annotated[int, Doc("number of header lines to fill in")]


@dataclass(frozen=True)
class ImportResult:
    """What an import did, or would do in a dry run. `tip_tree` is the tree of the whole stack, imported patches included."""

    target: Target
    base: Base
    patches: tuple[Imported, ...]
    left: tuple[Left, ...]
    said: tuple[str, ...]
    tip_tree: str
    written: bool


@dataclass(frozen=True)
class _Ground:
    """What the series is applied to: the base, the stack's own patches on it, and a repository with both."""

    base: Base
    existing: Sequence[StackPatch]
    result: StackResult
    store: Path


def import_series(
    dist: Distribution,
    sources: Sequence[Path],
    name: str | None,
    options: Options,
    places: SourceOptions,
    progress: Progress,
    *,
    dry_run: bool,
) -> ImportResult:
    """Import the patches of `sources` into the stack `name`.

    Raises ImportRefused with every fault of every file, and what the sources and the distribution raise; nothing is
    written then.
    """
    notes = Notebook(options)
    for upstream in (dist.root / "patches").glob("*"):
        sweep(_PREFIX, upstream)
    progress.note("reading mails")
    mails, left = collect(sources, notes)
    messages = [m for mail in mails if (m := read_mail(mail, notes)) is not None]
    series, said = _series(messages, left, notes)
    try:
        target = find_target(dist, name, series, options, _pin_reader(dist, places, progress))
    except NoBase as error:
        raise (ImportRefused(_by_file(notes.faults, mails), [str(error)]) if notes.faults else error) from error
    manifest = dist.stack_file(target.like or target.stack).read_text(encoding="utf-8")
    with scratch("patchctl-importing-") as temporary:
        ground, match, matched = _matched(dist, target, series, options, places, progress, temporary)
        said += _on_base(target)
        notes.faults += match.faults
        if notes.faults:
            raise ImportRefused(_by_file(notes.faults, mails), said)
        progress.note("writing patches")
        exported, headers = _exported(ground, matched)
        with staged(dist, target.stack, exported) as folder:
            tip = _proven(dist, ground, folder, exported, match)
            if not dry_run:
                write(dist, target, folder, exported, manifest)
    rows = tuple(_row(f, e, h.feature) for f, e, h in zip(matched, exported, headers, strict=True))
    return ImportResult(target, ground.base, rows, tuple(left), tuple(said), tip, not dry_run)


def _by_file(faults: Sequence[ImportFault], mails: Sequence[Mail]) -> list[ImportFault]:
    """Sort by mail, then by line."""
    order: dict[str, int] = {}
    for number, mail in enumerate(mails):
        order.setdefault(mail.file, number)
        order.setdefault(mail.shown, number)
    return sorted(faults, key=lambda f: (order.get(f.file, -1), f.line or 0))


def _series(messages: list[Message], left: list[Left], notes: Notebook) -> tuple[list[Foreign], list[str]]:
    """Return the mails with a diff, in order. Cover letters are skipped; a mail without a diff or a duplicate is a fault."""
    found = {id(m): read_diff(m) for m in messages}
    kept: list[Message] = []
    seen: dict[str, str] = {}
    for message in messages:
        foreign = found[id(message)]
        if not foreign.sections and message.part is not None and message.part[0] == 0:
            left.append(Left(message.mail.shown, f"a cover letter: {message.subject}"))
            continue
        check_words(message, notes)
        notes.faults += foreign.faults
        digest = hashlib.sha256(message.subject.encode() + b"\0" + b"\n".join(_lines(foreign))).hexdigest()
        if not foreign.sections and not foreign.faults:
            notes.fault(message.mail, message.mail.first + 1, "mail", "holds no diff", "leave it out")
        elif digest in seen:
            notes.fault(
                message.mail,
                message.mail.first + 1,
                "duplicate",
                f"is the same patch as {seen[digest]}",
                "leave it out",
            )
        else:
            seen[digest] = message.mail.shown
            kept.append(message)
    said = in_order(kept)
    return [found[id(m)] for m in kept], said


def _lines(foreign: Foreign) -> list[bytes]:
    return [line for s in foreign.sections for line, _ in [*s.extended, *s.body]]


def _pin_reader(dist: Distribution, places: SourceOptions, progress: Progress) -> PinFiles:
    def read(stack: Stack) -> Files:
        base = obtain(dist.upstream(stack.upstream), stack, places, progress)
        with ObjectReader(base.repo) as reader:
            return reader.files(base.tree)

    return read


def _matched(
    dist: Distribution,
    target: Target,
    series: Sequence[Foreign],
    options: Options,
    places: SourceOptions,
    progress: Progress,
    scratch: Path,
) -> tuple[_Ground, BaseMatch, list[Matched]]:
    """Apply the series to the stack. If the series reads a file that the sdist lacks, git is tried as well."""
    stack = target.stack
    upstream = dist.upstream(stack.upstream)
    base = obtain(upstream, stack, places, progress)
    ground, match, matched = _laid(dist, stack, base, series, options, places, scratch / "first.git")
    if match.lacking and base.form == "sdist" and places.source == "auto":
        try:
            base = obtain_form("git", upstream, stack, places, progress)
        except SourceUnavailable:
            return ground, match, matched
        return _laid(dist, stack, base, series, options, places, scratch / "second.git")
    return ground, match, matched


def _laid(
    dist: Distribution,
    stack: Stack,
    base: Base,
    series: Sequence[Foreign],
    options: Options,
    places: SourceOptions,
    store: Path,
) -> tuple[_Ground, BaseMatch, list[Matched]]:
    existing = load_patches(dist, stack)
    result = build_stack(base, existing, [], places.cache)
    create_git_dir(store, [])
    (store / "objects" / "info").mkdir(exist_ok=True)
    (store / "objects" / "info" / "alternates").write_text(f"{(base.repo / 'objects').absolute()}\n", encoding="utf-8")
    if result.pack is not None:
        bring_pack(result.pack, store / "objects" / "pack")
    name = f"{stack.upstream}/{stack.name}"
    way = f"`patchctl edit {name}`, {{command}} there with the trailers of docs/writing-patches.md, then `patchctl export {name}`"
    with ObjectReader(store) as reader:
        match = BaseMatch(reader, reader.files(result.tip_tree), options, base.form, way)
        return _Ground(base, existing, result, store), match, [match.add(foreign) for foreign in series]


def _on_base(target: Target) -> list[str]:
    """Return how well the series fits, and which other stack it fits better."""
    own = (target.like or target.stack).name
    chosen = [c for c in target.candidates if c.stack == own and c.upstream == target.stack.upstream]
    said = [f"base: {describe(c)}" for c in chosen]
    if not target.is_new and any(c.at_pin > c.at_tip for c in chosen):
        said.append(f"the patches are for the pin itself: --stack {target.stack.upstream}/NAME makes a new stack on it")
    better = [c for c in target.candidates for own in chosen if c.rank > own.rank]
    return said + [f"fits better: {describe(c)}" for c in better]


def _exported(ground: _Ground, matched: Sequence[Matched]) -> tuple[list[Exported], list[StackPatch]]:
    """Return the patches in our format, numbered after the stack's, and their origins."""
    taken = {p.feature for p in ground.existing}
    patches = []
    for one in matched:
        header = own_header(one.foreign.message, taken)
        feature = header.trailer("Feature") or ""
        if feature in taken:
            mail = one.foreign.message.mail
            what = f"the stack has a feature {feature} already"
            raise ImportRefused(
                [ImportFault(mail.shown, None, "duplicate", what, "leave it out, or change its `Feature:`")]
            )
        taken.add(feature)
        patch = Patch(one.foreign.shown, header, one.changes)
        patches.append(StackPatch(Path(one.foreign.shown), one.foreign.shown, b"", patch, {}))
    built = _built(ground, patches)
    built.objects.write(ground.store / "objects" / "pack")
    commits = [_commit(built, n) for n in range(len(built.steps))]
    carried = {path for p in ground.existing for path in p.carried}
    with ObjectReader(ground.store) as reader:
        made = export_commits(reader, built.base_tree, commits, [], carried)
    numbers = [int(p.file.name[:4]) for p in ground.existing]  # those of the stack that it extends, too
    first = max(numbers, default=0)
    named = [replace(e, name=f"{first + n:04d}{e.name[4:]}") for n, e in enumerate(made, 1)]
    return named, patches


def _built(ground: _Ground, patches: Sequence[StackPatch]) -> Built:
    with ObjectReader(ground.store) as reader:
        return StackBuilder(reader, ground.result.tip_commit, ground.result.tip_tree).build(patches)


def _commit(built: Built, number: int) -> CommitInfo:
    step = built.steps[number]
    parent = built.steps[number - 1].commit if number else built.base_commit
    header = step.patch.header
    return CommitInfo(step.commit, step.tree, (parent,), header.name, header.email, header.date, header.message)


def _proven(dist: Distribution, ground: _Ground, folder: Path, exported: Sequence[Exported], match: BaseMatch) -> str:
    """Return the tree that the staged files give when read as by `apply`; it must equal the tree of the mails."""
    patches = [load_patch(folder / place_of(e.name), dist.root) for e in exported]
    built = _built(ground, patches)
    if built.tip_tree != TreeBuilder(match.files).write():
        raise PatchctlError("the patches that were written give another tree than the mails; nothing was imported")
    return built.tip_tree


def _row(matched: Matched, exported: Exported, feature: str) -> Imported:
    message = matched.foreign.message
    head = exported.data.partition(b"\n---\n")[0].decode("utf-8", "replace")
    notes = (*message.mail.repairs, *dict.fromkeys(matched.notes))
    author = f"{message.name} <{message.email}>"
    return Imported(message.mail.shown, exported.name, feature, message.subject, author, notes, head.count(MARKER))


MARKER = "TODO(import)"
_LONGEST_FEATURE = 40
_NEED = f"Need: {MARKER}: what goes wrong or is missing upstream, and how one meets it."
_CHANGE = f"{MARKER}: what the patch changes, and why there."
_RISK = f"Risk: {MARKER}: what could depend on the old behaviour."
_TRAILERS = {
    "Switch": f"{MARKER}: none, env NAME=VALUE, config key=VALUE or option --NAME",
    "Upstream-Status": f"{MARKER}: Pending, Submitted URL, Backport URL or Inappropriate REASON",
    "Drop-When": f"{MARKER}: the upstream release or change that makes it needless",
}
_FIRST = ("Feature", "Switch", "Requires")


def own_header(message: Message, taken: Container[str]) -> Header:
    """The header with every paragraph and trailer that a patch of a stack has; `taken` are the features that are there."""
    header = _parsed(Header(message.name, message.email, message.date, message.subject, message.body))
    paragraphs = [p.strip("\n") for p in re.split(r"\n[ \t]*\n", header.body) if p.strip("\n")]
    if header.trailers:
        paragraphs.pop()
    trailers = {key: [t.value for t in values] for key, values in header.trailers.items()}
    wanted = {"Feature": feature_name(message.subject, taken), **_TRAILERS}
    for key, value in wanted.items():
        trailers.setdefault(key, [value])
    trailers.setdefault("Imported", [_origin(message)])
    ordered = [k for k in _FIRST if k in trailers]
    ordered += [k for k in trailers if k not in (*_FIRST, "Upstream-Status", "Drop-When", "Imported")]
    ordered += ["Upstream-Status", "Drop-When", "Imported"]
    lines = "\n".join(f"{key}: {value}" for key in ordered for value in trailers[key])
    return _parsed(replace(header, body="\n\n".join([*_told(paragraphs), lines]), trailers={}))


def _told(paragraphs: list[str]) -> list[str]:
    """Need, change, risk, in the order that the lint wants; what the author wrote stays as it is."""
    risks = [p for p in paragraphs if p.startswith("Risk:")]
    others = [p for p in paragraphs if not p.startswith("Risk:")]
    missing = [[_NEED, _CHANGE], [_NEED], []][min(len(others), 2)]
    return [*missing, *others, *(risks or [_RISK])]


def _parsed(header: Header) -> Header:
    """The header as our reader finds it in a file, with its trailers."""
    found, _ = parse_header(render_patch(header, []).split(b"\n"), "message")
    return replace(found, body=found.body.strip("\n"))


def _origin(message: Message) -> str:
    """The mail by its file's name and digest: where the patch came from, and that its author is deliberately foreign."""
    name = re.sub(r"[^A-Za-z0-9._#+-]", "_", message.mail.shown.rpartition("/")[2])[-60:]
    return f"{name}, sha256 {hashlib.sha256(message.mail.data).hexdigest()[:12]}"


def feature_name(subject: str, taken: Container[str]) -> str:
    """A feature's name from a subject: its words in small letters, as many as are short, and not one that is taken."""
    words = re.findall(r"[a-z0-9]+", subject.lower())
    name = ""
    for word in words:
        if len(name) + 1 + len(word) > _LONGEST_FEATURE:
            break
        name = f"{name}_{word}" if name else word
    name = name or (words[0][:_LONGEST_FEATURE] if words else "imported")
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


# What a stack's manifest says of its own patches, and a new stack on the same pin does not take over.
_ITS_OWN = frozenset(
    ["name", "comes_from", "extends", "patches", "replace", "dropped", "postponed", "gains", "unlinted", "note"]
)
_PREFIX = ".patchctl-import-"
_TOP_LEVEL = re.compile(r"(?m)^(?=[A-Za-z_]+:)")


@contextmanager
def staged(dist: Distribution, stack: Stack, exported: Sequence[Exported]) -> Iterator[Path]:
    """The patches and carried files in a hidden folder beside the stack's; gone when the block ends. Raises WrongUse."""
    parent = dist.root / "patches" / stack.upstream
    made = [p for p in (parent, parent.parent) if not p.exists()]
    try:
        make_folder(parent)
        with scratch(_PREFIX, parent) as folder:
            write_stack(folder, exported)
            yield folder
    except OSError as error:
        raise _unwritable(parent, error) from error
    finally:
        for empty in made:
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()


def _unwritable(place: Path, error: OSError) -> PatchctlError:
    return error_type(error)(
        f"{place} cannot be written: {error.strerror}", hint="nothing was imported; mend it and run it again"
    )


def write(dist: Distribution, target: Target, folder: Path, exported: Sequence[Exported], manifest: str) -> None:
    """Move what is staged in `folder` to its place, then write the manifest, whose text was read before the run began.

    Raises LocalEdits when a file of another content is in the way, or the manifest was changed meanwhile.
    """
    place = dist.root / "patches" / target.stack.upstream / target.stack.name
    file = dist.stack_file(target.stack)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if text != ("" if target.is_new else manifest):
        raise LocalEdits(f"{file} was changed while this ran", [str(file)], hint="run it again")
    pairs = [(f, place / f.relative_to(folder)) for f in sorted(folder.rglob("*")) if f.is_file()]
    there = [(f, t) for f, t in pairs if t.exists() or t.is_symlink()]
    other = [str(t) for f, t in there if t.is_symlink() or not t.is_file() or t.read_bytes() != f.read_bytes()]
    if other:
        raise LocalEdits(
            "files that no manifest lists are in the way", other, hint="move them elsewhere, or remove them"
        )
    names = [e.name for e in exported]
    own = names if target.is_new else [*target.stack.patches, *names]
    wanted = rewrite_patches(_base_text(target, manifest), own)
    loads(wanted.encode(), Stack, str(file))  # what could not be read again is not written
    with ExitStack() as undo:
        for source, to in pairs:
            undo.callback(drop_empty, to.parent, dist.root / "patches")
            make_folder(to.parent)
            if (source, to) not in there:
                undo.callback(to.unlink, missing_ok=True)
            own_like(source, to.parent.stat())
            source.replace(to)
        for parent in sorted({place, *(to.parent for _, to in pairs)}):
            sync_folder(parent)  # on the disk before the manifest names what was moved
        try:
            replace_file(file, wanted.encode())
        finally:
            # In its place, which it is also where the disk failed just after the rename.
            if file.is_file() and file.read_bytes() == wanted.encode():
                undo.pop_all()


def _base_text(target: Target, manifest: str) -> str:
    """The manifest to write the list into: the stack's own, or for a new one that of the stack which lends its pin."""
    if not target.is_new:
        return manifest
    blocks = _TOP_LEVEL.split(manifest)
    kept = [b for b in blocks if b.partition(":")[0] not in _ITS_OWN]
    kept[-1] = kept[-1].rstrip("\n") + "\n"
    at = next(i for i, b in enumerate(kept) if b.startswith("upstream:")) + 1
    kept.insert(at, f"name: {plain(target.stack.name)}\n")
    extends = f"extends: {plain(target.stack.extends)}\n" if target.stack.extends else ""
    return "".join(kept) + extends + "patches: []\n"
