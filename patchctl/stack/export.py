"""The inverse of the stack function: commits -> patch files and carried files.

A commit that an existing patch still gives, byte for byte, keeps that file as it is; so nothing changes in the files of a
stack that nobody changed, on any machine. Only other commits are written anew, by patchctl.patch.write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.errors import BadPatch, PatchctlError, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.history import CommitInfo
from patchctl.git.objects import REGULAR, Files, TreeEntry
from patchctl.manifest.series import feature_of, place_of
from patchctl.patch.header import Header, parse_header
from patchctl.patch.write import FileDiff, Side, mail_date, render_patch
from patchctl.stack.build import StackBuilder
from patchctl.stack.patches import CARRIED_FOLDER, StackPatch
from patchctl.stack.result_cache import StackResult

# What a list in a trailer can name; a new file of another name stays in the diff.
_LISTABLE = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_./+~-]*")
_TRAILER_ORDER = ("Feature", "Switch", "Requires", "Carries", "Upstream-Status", "Drop-When")
_WANTED = tuple(key for key in _TRAILER_ORDER if key not in ("Requires", "Carries"))
_TRAILERS_HINT = f"end its message with the trailers of a patch, as its last paragraph: {', '.join(_WANTED)}"


@dataclass(frozen=True)
class Exported:
    """One patch file to be: its name, its bytes, and its carried files (path in the upstream tree to content)."""

    name: str
    data: bytes
    carried: dict[str, bytes]


def export_commits(
    reader: ObjectReader,
    base_tree: str,
    commits: Sequence[CommitInfo],
    existing: Sequence[StackPatch],
    carried: Collection[str] = (),
) -> list[Exported]:
    """Patch files for `commits`, the first of which stands on a commit with tree `base_tree`. `carried` are paths that
    other patches of the stack carry.

    Raises WrongUse when commits cannot be patches: trailers of every patch are missing (all such commits are named),
    empty, a link or a submodule. Trailers of a file that stays as it is are `verify`'s to judge.
    """
    headers = [_header(c) for c in commits]
    _check_features(headers, commits)
    names = _names(headers, existing)
    by_name = {p.file.name: p for p in existing}
    exported: list[Exported] = []
    lacking: list[str] = []
    before = reader.files(base_tree)
    tree = base_tree
    for commit, header, (name, old_name) in zip(commits, headers, names, strict=True):
        after = reader.files(commit.tree)
        old = by_name.get(old_name or "")
        if old is not None and _still_gives(reader, old, commit, header, tree):
            exported.append(Exported(name, old.data, old.carried))
        elif missing := _missing(header):
            lacking.append(_without_trailers(commit, header, missing))
        else:
            taken = {*carried, *(path for e in exported for path in e.carried)}
            exported.append(_render(reader, name, commit, header, before, after, taken))
        before, tree = after, commit.tree
    _refuse(lacking)
    return exported


def mbox_patches(reader: ObjectReader, result: StackResult) -> dict[str, bytes]:
    """File name to bytes of every patch as plain `git format-patch` has it, carried files inside: for `git am`.

    `reader` must have the base's objects and the result's.
    """
    files: dict[str, bytes] = {}
    for step in result.steps:
        what = step.patch.shown
        sides = [(os.fsencode(c.path), c.before, c.after) for c in step.touched]
        differences = [FileDiff(p, _side(reader, b, p, what), _side(reader, a, p, what)) for p, b, a in sides]
        files[step.patch.file.name] = render_patch(step.patch.header, differences, step.commit)
    return files


def write_stack(folder: Path, exported: Sequence[Exported]) -> None:
    """Write these patches and carried files into the stack's folder, each by rename; what is so already stays."""
    for path, data in _wanted(exported).items():
        file = folder / path
        if not file.is_file() or file.read_bytes() != data:
            replace_file(file, data)


def remove_gone(folder: Path, exported: Sequence[Exported], existing: Sequence[StackPatch]) -> None:
    """Take away what the stack no longer has. After the manifest, so that it never names a file that is not there."""
    for path in _present(existing) - _wanted(exported).keys():
        (folder / path).unlink(missing_ok=True)
        for parent in (folder / path).parents:
            if parent == folder or any(parent.iterdir()):
                break
            parent.rmdir()


def compare_stack(folder: Path, exported: Sequence[Exported], existing: Sequence[StackPatch]) -> list[str]:
    """What `write_stack` and `remove_gone` would change, a line each."""
    wanted = _wanted(exported)
    lines = [f"{path} goes" for path in sorted(_present(existing) - wanted.keys())]
    for path, data in sorted(wanted.items()):
        file = folder / path
        if not file.is_file():
            lines.append(f"{path} is new")
        elif file.read_bytes() != data:
            lines.append(f"{path} differs")
    return lines


def _wanted(exported: Sequence[Exported]) -> dict[str, bytes]:
    carried = {_carried_at(e.name, p): d for e in exported for p, d in e.carried.items()}
    return {**{place_of(e.name): e.data for e in exported}, **carried}


def _present(existing: Sequence[StackPatch]) -> set[str]:
    carried = {_carried_at(p.file.name, c) for p in existing for c in p.carried}
    return {place_of(p.file.name) for p in existing} | carried


def _carried_at(name: str, path: str) -> str:
    return f"{feature_of(name)}/{CARRIED_FOLDER}/{path}"


def _header(commit: CommitInfo) -> Header:
    """The commit's message as a patch's header; read by our own parser, so that what is written can be read again."""
    what = f"commit {commit.id[:12]}"
    subject, _, body = commit.message.partition("\n")
    text = f"From: a <a@b>\nDate: {mail_date(commit.date)}\nSubject: {subject}\n\n{body.strip()}\n"
    try:
        parsed, _ = parse_header(text.encode().split(b"\n"), what)
    except BadPatch as error:
        raise WrongUse(
            f"the message of {what} cannot be a patch's: {error.what}", hint="change it: `git rebase -i`"
        ) from error
    if parsed.message != commit.message:
        hint = "no line of it may begin a diff or be `---`, its subject no bracket, and it has no blanks at line ends"
        raise WrongUse(f"`git am` would read the message of {what} differently", hint=hint)
    return Header(commit.name, commit.email, commit.date, parsed.subject, parsed.body.strip("\n"), parsed.trailers)


def _missing(header: Header) -> list[str]:
    return [key for key in _WANTED if not header.trailer(key)]


def _without_trailers(commit: CommitInfo, header: Header, missing: Sequence[str]) -> str:
    return f"commit {commit.id[:12]} ({header.subject}) has no trailer {' and no '.join(missing)}"


def _refuse(lacking: Sequence[str]) -> None:
    if lacking:
        raise WrongUse("\n".join(lacking), hint=_TRAILERS_HINT)


def _check_features(headers: Sequence[Header], commits: Sequence[CommitInfo]) -> None:
    """Raise WrongUse when a commit has no name: without one nobody knows which patch it was. All that lack trailers are
    named then, since whoever adds one adds the others in the same rebase."""
    lacking = []
    nameless = False
    for header, commit in zip(headers, commits, strict=True):
        missing = _missing(header)
        feature = header.trailer("Feature")
        if feature is not None and not re.fullmatch(r"[a-z0-9_]+", feature):
            missing.insert(0, "Feature of small letters, digits and '_'")
        nameless = nameless or not feature or len(missing) > len(_missing(header))
        if missing:
            lacking.append(_without_trailers(commit, header, missing))
    if nameless:
        _refuse(lacking)


def _names(headers: Sequence[Header], existing: Sequence[StackPatch]) -> list[tuple[str, str | None]]:
    """(file name, the existing patch that it was) of every commit. Numbers stay while they still ascend. The
    kind follows `Switch:`, which is what the lint rule name-kind wants."""
    known: dict[str, list[str]] = {}
    for patch in existing:
        known.setdefault(patch.feature, []).append(patch.file.name)
    pairs: list[tuple[str, str | None]] = []
    for header in headers:
        feature = header.trailer("Feature") or ""
        old = known[feature].pop(0) if known.get(feature) else None
        kind = "bugfix" if header.trailer("Switch") in (None, "none") else "feature"
        stays = old is not None and (old[4:].startswith(f"-{kind}-") or header.trailer("Switch") is None)
        pairs.append((old if old and stays else f"{(old or '0000')[:4]}-{kind}-{feature}.patch", old))
    numbers = [int(name[:4]) for name, _ in pairs]
    if all(a < b for a, b in zip([0, *numbers], numbers, strict=False)):
        return pairs
    return [(f"{n:04d}{name[4:]}", old) for n, (name, old) in enumerate(pairs, 1)]


def _still_gives(reader: ObjectReader, patch: StackPatch, commit: CommitInfo, header: Header, tree: str) -> bool:
    """Whether the file as it is makes exactly this commit on this tree: same author, date, message and files."""
    same = (patch.header.name, patch.header.email, patch.header.date) == (header.name, header.email, header.date)
    if not same or patch.header.message != commit.message:
        return False
    try:
        return StackBuilder(reader, commit.parents[0], tree).build([patch]).tip_tree == commit.tree
    except PatchctlError:  # it does not apply here any more: it is written anew
        return False


def _render(
    reader: ObjectReader,
    name: str,
    commit: CommitInfo,
    header: Header,
    before: Files,
    after: Files,
    taken: Collection[str],
) -> Exported:
    """`taken` are carried files of other patches: one that goes and comes back cannot lie in one place twice."""
    differences = _differences(reader, before, after, f"commit {commit.id[:12]}")
    if not differences:
        hint = "change files and `git commit --amend`, or drop it with `git rebase -i`"
        raise WrongUse(f"commit {commit.id[:12]} ({header.subject}) changes nothing", hint=hint)
    new = [d for d in differences if d.before is None and d.after and d.after.mode == REGULAR]
    carried = {d.path.decode(): d.after.data for d in new if d.after and _LISTABLE.fullmatch(d.path)}
    carried = {path: data for path, data in carried.items() if path not in taken}
    if len(carried) == len(differences):  # a patch file must hold a diff: the first new file with a line goes into it
        first = min(carried, key=lambda path: (not carried[path], path))
        del carried[first]
    rest = [d for d in differences if d.path.decode("utf-8", "surrogateescape") not in carried]
    header = _with_carries(header, sorted(carried))
    return Exported(name, render_patch(header, rest), carried)


def _with_carries(header: Header, paths: list[str]) -> Header:
    """The header with its `Carries:` trailer naming exactly these paths, in the usual order of trailers."""
    body = header.body.strip("\n").split("\n")
    while body and body[-1].strip():
        body.pop()
    trailers = {k: [t.value for t in v] for k, v in header.trailers.items() if k != "Carries"}
    if paths:
        trailers["Carries"] = paths  # a line each: together they are soon too long for one
    if header.listed("Carries") == paths:
        return header
    ordered = sorted(trailers, key=lambda k: _TRAILER_ORDER.index(k) if k in _TRAILER_ORDER else len(_TRAILER_ORDER))
    lines = [f"{key}: {value}" for key in ordered for value in trailers[key]]
    text = "\n".join([*body, *lines])
    return Header(header.name, header.email, header.date, header.subject, text, header.trailers)


def _differences(reader: ObjectReader, before: Files, after: Files, what: str) -> list[FileDiff]:
    paths = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    found = []
    for path in paths:
        sides = [_side(reader, side.get(path), path, what) for side in (before, after)]
        found.append(FileDiff(path, sides[0], sides[1]))
    return found


def _side(reader: ObjectReader, entry: TreeEntry | None, path: bytes, what: str) -> Side | None:
    if entry is None:
        return None
    if entry.mode not in (0o100644, 0o100755):
        raise WrongUse(
            f"{what} changes {path.decode('utf-8', 'replace')!a}, which is a link or a submodule: a stack changes files only"
        )
    return Side(entry.mode, entry.id, reader.read(entry.id)[1])


@dataclass(frozen=True)
class ForUpstream:
    """Mails that upstream could take, the feature's last, by file name; and what does not go with them, in words."""

    files: Mapping[str, bytes]
    left_out: tuple[str, ...]


def for_upstream(reader: ObjectReader, result: StackResult, upstream: str, tests: Sequence[str]) -> ForUpstream:
    """Every commit of a stack of one feature and its requirements as a mail without our trailers. `reader` must have the
    base's objects and the result's; `tests` are the feature's, which are for patchctl's harness."""
    files: dict[str, bytes] = {}
    for number, step in enumerate(result.steps, 1):
        differences = []
        for one in step.touched:
            path = one.path.encode()
            sides = [_side(reader, entry, path, step.patch.shown) for entry in (one.before, one.after)]
            differences.append(FileDiff(path, sides[0], sides[1]))
        files[f"{number:04d}-{step.patch.feature}.patch"] = render_patch(_plain(step.patch.header), differences)
    *before, wanted = [step.patch for step in result.steps]
    elsewhere = [f"{f}@{u}" for f, u in wanted.requires if u not in (None, upstream)]
    told = [
        f"the trailers {', '.join(wanted.header.trailers)}: they are patchctl's",
        "Signed-off-by: nobody signs for you; `git am --signoff` adds yours",
        f"an author: {wanted.header.name} <{wanted.header.email}> stands there; `git commit --amend --reset-author`",
        *([f"tests in upstream's own form; ours are for patchctl's harness: {', '.join(tests)}"] if tests else []),
        *([f"what it requires in other upstreams: {', '.join(elsewhere)}"] if elsewhere else []),
    ]
    if before:
        told.append(f"nothing of what it requires: {', '.join(p.feature for p in before)} come first, a mail each")
    return ForUpstream(files, tuple(told))


def _plain(header: Header) -> Header:
    """The message without its last paragraph, where that is the trailers."""
    body = header.body.strip("\n").split("\n")
    while header.trailers and body and body[-1].strip():
        body.pop()
    return replace(header, body="\n".join(body).strip("\n"), trailers={})
