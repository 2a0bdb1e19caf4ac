"""The inverse of the stack function: commits -> patch files and carried files.

A commit that an existing patch still gives, byte for byte, keeps that file, so that exporting an unchanged stack
changes nothing on any machine. Only other commits are rendered anew, by patchctl.patch.write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from patchctl.atomic import drop_empty, replace_file
from patchctl.errors import BadPatch, PatchctlError, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.history import CommitInfo
from patchctl.git.objects import COMMITTER, REGULAR, Files, TreeEntry, object_id
from patchctl.manifest.series import PROPOSED, SHARED, feature_of, place_of, shared_folder
from patchctl.manifest.types import Titles
from patchctl.patch.header import Header, parse_header
from patchctl.patch.write import FileDiff, Side, mail_date, render_patch
from patchctl.stack.build import StackBuilder
from patchctl.stack.patches import CARRIED_FOLDER, StackPatch
from patchctl.stack.result_cache import StackResult

# Paths that a trailer can list; other new files stay in the diff.
_LISTABLE = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_./+~-]*")
_TRAILER_ORDER = ("Feature", "Switch", "Requires", "Carries", "Upstream-Status", "Drop-When")
_OWN = (*_TRAILER_ORDER, "Imported")
_WANTED = tuple(key for key in _TRAILER_ORDER if key not in ("Requires", "Carries"))
_TRAILERS_HINT = f"end the commit message with a paragraph of trailers: {', '.join(_WANTED)}"


@dataclass(frozen=True)
class Exported:
    """A patch file to write: name, bytes, and carried files (path in the upstream tree to content)."""

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
    """Return patch files for `commits`, the first of which has a parent with tree `base_tree`.

    `carried` are paths that other patches of the stack carry. Raises WrongUse for commits that cannot be patches:
    trailers missing (all such commits are named), empty, a link or a submodule. Trailers of unchanged files are left
    to `verify`.
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
    """Return every patch as plain `git format-patch` mails with carried files inlined, by file name, for `git am`.

    `reader` must have the objects of base and result.
    """
    files: dict[str, bytes] = {}
    for step in result.steps:
        what = step.patch.shown
        differences = [
            FileDiff(c.path, _side(reader, c.before, c.path, what), _side(reader, c.after, c.path, what))
            for c in step.touched
        ]
        files[step.patch.file.name] = render_patch(step.patch.header, differences, step.commit)
    return files


def write_stack(folder: Path, exported: Sequence[Exported]) -> None:
    """Write patches and carried files into the stack's folder, each by rename. Unchanged files are not touched."""
    for path, data in _wanted(folder, exported).items():
        file = folder / path
        if not file.is_file() or file.read_bytes() != data:
            replace_file(file, data)


def remove_gone(folder: Path, exported: Sequence[Exported], existing: Sequence[StackPatch]) -> None:
    """Delete what the stack no longer has. Run after the manifest is written, which must not name missing files."""
    for path in _present(folder, existing) - _wanted(folder, exported).keys():
        _remove(folder, path)


def share_carried(folder: Path, patches: Sequence[StackPatch]) -> None:
    """Move each carried file of the stack that another stack of the upstream has, byte for byte, to where stacks share it."""
    for patch in patches:
        for path, data in patch.carried.items():
            at = _carried_at(patch.file.name, path)
            shared = folder.parent / SHARED / at
            alike = [one for one in folder.parent.iterdir() if (one / at).is_file() and (one / at).read_bytes() == data]
            if (folder / at).exists() and len(alike) > 1 and (folder.parent / SHARED in alike or not shared.exists()):
                replace_file(shared, data)  # first, so that a killed run leaves no patch without its file
                for one in alike:
                    if one.name != SHARED:
                        _remove(one, at)


def _remove(folder: Path, path: str) -> None:
    """Remove a file and the folders that it leaves empty."""
    (folder / path).unlink(missing_ok=True)
    drop_empty((folder / path).parent, folder)


def compare_stack(folder: Path, exported: Sequence[Exported], existing: Sequence[StackPatch]) -> list[str]:
    """Return what `write_stack` and `remove_gone` would change, one line each."""
    wanted = _wanted(folder, exported)
    lines = [f"{path} is removed" for path in sorted(_present(folder, existing) - wanted.keys())]
    for path, data in sorted(wanted.items()):
        file = folder / path
        if not file.is_file():
            lines.append(f"{path} is new")
        elif file.read_bytes() != data:
            lines.append(f"{path} differs")
    return lines


def _wanted(folder: Path, exported: Sequence[Exported]) -> dict[str, bytes]:
    """Return what the folder must have: no copy of a carried file that the upstream's stacks share as it is."""
    carried = {_carried_at(e.name, p): d for e in exported for p, d in e.carried.items()}
    carried = {path: data for path, data in carried.items() if not _is_shared(folder, path, data)}
    return {**{place_of(e.name): e.data for e in exported}, **carried}


def _is_shared(folder: Path, path: str, data: bytes) -> bool:
    shared = folder.parent / SHARED / path
    return not (folder / path).exists() and shared.is_file() and shared.read_bytes() == data


def _present(folder: Path, existing: Sequence[StackPatch]) -> set[str]:
    carried = {_carried_at(p.file.name, c) for p in existing for c in p.carried}
    return {place_of(p.file.name) for p in existing} | {path for path in carried if (folder / path).exists()}


def _carried_at(name: str, path: str) -> str:
    return f"{feature_of(name)}/{CARRIED_FOLDER}/{path}"


def as_mail(commit: CommitInfo) -> list[bytes]:
    """Return the lines of a mail with the commit's date and message, for `parse_header`."""
    subject, _, body = commit.message.partition("\n")
    text = f"From: a <a@b>\nDate: {mail_date(commit.date)}\nSubject: {subject}\n\n{body.strip()}\n"
    return text.encode().split(b"\n")


def _header(commit: CommitInfo) -> Header:
    """Parse the commit's message as a patch header with our own parser, so that what is written can be read back."""
    what = f"commit {commit.id[:12]}"
    try:
        parsed, _ = parse_header(as_mail(commit), what)
    except BadPatch as error:
        raise WrongUse(
            f"the message of {what} cannot be a patch header: {error.what}", hint="reword it with `git rebase -i`"
        ) from error
    if parsed.message != commit.message:
        hint = "the message must not contain a diff, a `---` line, a bracket at the subject's start or trailing blanks"
        raise WrongUse(f"`git am` would read the message of {what} differently", hint=hint)
    return Header(commit.name, commit.email, commit.date, parsed.subject, parsed.body.strip("\n"), parsed.trailers)


def _missing(header: Header) -> list[str]:
    return [key for key in _WANTED if not header.trailer(key)]


def _without_trailers(commit: CommitInfo, header: Header, missing: Sequence[str]) -> str:
    return f"commit {commit.id[:12]} ({header.subject}) lacks {', '.join(missing)}"


def _refuse(lacking: Sequence[str]) -> None:
    if lacking:
        raise WrongUse("\n".join(lacking), hint=_TRAILERS_HINT)


def _check_features(headers: Sequence[Header], commits: Sequence[CommitInfo]) -> None:
    """Raise WrongUse if a commit does not name its feature, without which its patch is unknown.

    Then lists all commits with missing trailers, since one rebase fixes them all.
    """
    lacking = []
    nameless = False
    for header, commit in zip(headers, commits, strict=True):
        missing = _missing(header)
        feature = header.trailer("Feature")
        if feature is not None and not re.fullmatch(r"[a-z0-9_]+", feature):
            missing.insert(0, "Feature of lower-case letters, digits and '_'")
        nameless = nameless or not feature or len(missing) > len(_missing(header))
        if missing:
            lacking.append(_without_trailers(commit, header, missing))
    if nameless:
        _refuse(lacking)


def _names(headers: Sequence[Header], existing: Sequence[StackPatch]) -> list[tuple[str, str | None]]:
    """Return (file name, existing patch that it was) of every commit.

    Numbers are kept while they ascend. The kind follows `Switch:`, as the lint rule name-kind demands.
    """
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
    """Whether the existing file gives exactly this commit on this tree: same author, date, message and files."""
    same = (patch.header.name, patch.header.email, patch.header.date) == (header.name, header.email, header.date)
    if not same or patch.header.message != commit.message:
        return False
    try:
        return StackBuilder(reader, commit.parents[0], tree).build([patch]).tip_tree == commit.tree
    except PatchctlError:  # it no longer applies here, so it is rendered anew
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
    """Render a commit. `taken` are files that other patches carry: a path cannot be carried twice."""
    differences = _differences(reader, before, after, f"commit {commit.id[:12]}")
    if not differences:
        hint = "change files and `git commit --amend`, or drop it with `git rebase -i`"
        raise WrongUse(f"commit {commit.id[:12]} ({header.subject}) changes nothing", hint=hint)
    new = [d for d in differences if d.before is None and d.after and d.after.mode == REGULAR]
    carried = {d.path.decode(): d.after.data for d in new if d.after and _LISTABLE.fullmatch(d.path)}
    carried = {path: data for path, data in carried.items() if path not in taken}
    if len(carried) == len(differences):  # a patch file needs a diff: put the first non-empty new file into it
        first = min(carried, key=lambda path: (not carried[path], path))
        del carried[first]
    rest = [d for d in differences if d.path.decode("utf-8", "surrogateescape") not in carried]
    header = _with_carries(header, sorted(carried))
    return Exported(name, render_patch(header, rest), carried)


def _with_carries(header: Header, paths: list[str]) -> Header:
    """Return the header with a `Carries:` trailer for exactly these paths, in the usual trailer order."""
    body = header.body.strip("\n").split("\n")
    while body and body[-1].strip():
        body.pop()
    trailers = {k: [t.value for t in v] for k, v in header.trailers.items() if k != "Carries"}
    if paths:
        trailers["Carries"] = paths  # one line each, or the line gets too long
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
            f"{what} changes {path.decode('utf-8', 'replace')!a}, a link or a submodule: a stack changes regular files only"
        )
    return Side(entry.mode, entry.id, reader.read(entry.id)[1])


@dataclass(frozen=True)
class ForUpstream:
    """Mails to send upstream, the feature's last, by file name; and descriptions of what they lack."""

    files: Mapping[str, bytes]
    left_out: tuple[str, ...]


# How a carried file says that it is no file of upstream's, with the blank comment line below.
_OURS = re.compile(rb"\A# Part of patchctl's patch [^\n]*\n(#\n)?")


def for_upstream(
    reader: ObjectReader,
    result: StackResult,
    upstream: str,
    tests: Sequence[str],
    titles: Titles | None = None,
    signer: tuple[str, str] | None = None,
) -> ForUpstream:
    """Render a feature and its requirements as mails without our trailers, without the line that says that a file is ours, with what
    their pull requests have besides (PROPOSED).

    `reader` must have the objects of base and result. `tests` are the feature's, which depend on patchctl's harness. Subjects
    take the form of `titles`; `signer`, a name and an address, signs off, and is the author of what has no person for one.
    """
    files: dict[str, bytes] = {}
    named: list[str] = []
    there: dict[bytes, Side | None] = {}  # what the mails so far leave of files beside the patches'
    base = reader.files(result.base_tree)
    for number, step in enumerate(result.steps, 1):
        differences = []
        for one in step.touched:
            path, shown = one.path, os.fsdecode(one.path)
            before, after = (_plain_side(reader, entry, path, step.patch.shown) for entry in (one.before, one.after))
            differences.append(FileDiff(path, before, after))
            named += [shown] if _names_us(before, after) and shown not in named else []
        for path, side in ((path.encode(), side) for path, side in _proposed(step.patch).items()):
            before = there[path] if path in there else _side(reader, base.get(path), path, step.patch.shown)
            differences += [] if before == side else [FileDiff(path, before, side)]
            there[path] = side
        header = _signed(_titled(_plain(step.patch.header), step.patch, titles), signer)
        files[f"{number:04d}-{step.patch.feature}.patch"] = render_patch(header, differences)
    *before_it, wanted = [step.patch for step in result.steps]
    elsewhere = [f"{f}@{u}" for f, u in wanted.requires if u not in (None, upstream)]
    unproposed = tests and not _proposed(wanted)
    author, nobody = f"{wanted.header.name} <{wanted.header.email}>", signer is None and _is_ours(wanted.header)
    told = [
        f"the trailers {', '.join(key for key in wanted.header.trailers if key in _OWN)}, which are patchctl's",
        *([] if signer else _UNSIGNED),
        *([f"your name as author, instead of {author}: `git commit --amend --reset-author`"] if nobody else []),
        *([f"tests in upstream's style; ours need patchctl's harness: {', '.join(tests)}"] if unproposed else []),
        *([f"requirements in other upstreams: {', '.join(elsewhere)}"] if elsewhere else []),
        *([f"another word for patchctl, which these lines still name: {', '.join(named)}"] if named else []),
    ]
    if before_it:
        told.append(f"nothing it requires here: {', '.join(p.feature for p in before_it)} come first, one mail each")
    return ForUpstream(files, tuple(told))


_UNSIGNED = ("Signed-off-by: add yours with `git am --signoff`, or export with --signoff 'NAME <MAIL>'",)


def proposed_files(feature: Path) -> dict[str, Path]:
    """What the pull request of the feature in this folder has besides its patch, by path in upstream's tree; of two files the stack's
    own counts."""
    found = {}
    for below in (shared_folder(feature) / PROPOSED, feature / PROPOSED):
        for file in sorted(file for file in below.rglob("*") if file.is_file() and "__pycache__" not in file.parts):
            found[file.relative_to(below).as_posix()] = file
    return found


def _proposed(patch: StackPatch) -> dict[str, Side]:
    contents = {path: file.read_bytes() for path, file in proposed_files(patch.file.parent).items()}
    return {path: Side(REGULAR, object_id("blob", data), data) for path, data in contents.items()}


def _plain_side(reader: ObjectReader, entry: TreeEntry | None, path: bytes, what: str) -> Side | None:
    side = _side(reader, entry, path, what)
    if side is None or not _OURS.match(side.data):
        return side
    data = _OURS.sub(b"", side.data)
    return Side(side.mode, object_id("blob", data), data)


def _names_us(before: Side | None, after: Side | None) -> bool:
    """Whether a line that is added names patchctl."""
    was = set(before.data.split(b"\n")) if before else set()
    return any(b"patchctl" in line for line in (after.data.split(b"\n") if after else ()) if line not in was)


def _titled(header: Header, patch: StackPatch, titles: Titles | None) -> Header:
    area, colon, what = header.subject.partition(": ")
    if titles is None or not colon:
        return header
    form = titles.bugfix if patch.header.trailer("Switch") in (None, "none") else titles.feature
    return replace(header, subject=form.format(area=titles.areas.get(area, area), what=what))


def _has_trailers(body: str) -> bool:
    """Whether the last of several paragraphs is of trailers, as `git am --signoff` looks at it."""
    last = body.strip("\n").rpartition("\n\n")[2].split("\n")
    return all(re.match(r"[A-Z][A-Za-z-]*: ", line) for line in last) and not last[0].startswith(("Need:", "Risk:"))


def _signed(header: Header, signer: tuple[str, str] | None) -> Header:
    if signer is None:
        return header
    name, email = signer
    gap = "\n" if _has_trailers(header.body) else "\n\n"
    signed = replace(header, body=f"{header.body}{gap}Signed-off-by: {name} <{email}>")
    return replace(signed, name=name, email=email) if _is_ours(header) else signed


def _is_ours(header: Header) -> bool:
    """Whether no person is the author: a patch that came from one keeps its author."""
    return (header.name, header.email) == COMMITTER


def _plain(header: Header) -> Header:
    """Return the header without our own trailers."""
    body = header.body.strip("\n").split("\n")
    while header.trailers and body and body[-1].strip():
        body.pop()
    kept = [f"{key}: {one.value}" for key, found in header.trailers.items() if key not in _OWN for one in found]
    return replace(header, body="\n".join([*body, *kept]).strip("\n"), trailers={})
