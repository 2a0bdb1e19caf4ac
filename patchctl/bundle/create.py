"""Creates a bundle: builds the profile here, collects every available form of its sources, and writes one file."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from patchctl.atomic import replacing
from patchctl.bundle.layout import (
    DIGEST,
    DISTRIBUTION,
    END,
    INDEX,
    BundledSource,
    BundleMember,
    Index,
    fits,
    header,
    padding,
    render_digest,
    render_index,
)
from patchctl.bundle.signature import Signature, SigningKey, signature_file
from patchctl.errors import BadManifest, SourceMismatch, SourceUnavailable, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import FOLDER, GITLINK, parse_tree
from patchctl.git.pack import PackWriter
from patchctl.git.run import GitFailed
from patchctl.git.worktree import WorkTree, enclosing
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile, Stack
from patchctl.os_errors import error_type
from patchctl.patch.names import why_refused
from patchctl.source import cache
from patchctl.source.intact import check_base
from patchctl.source.obtain import obtain_form
from patchctl.source.types import Base, Form, SourceOptions
from patchctl.stack.locking import forms_of
from patchctl.stack.patches import carried_folder
from patchctl.stack.plan import Plan, make_plan, select
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line

# What the users of a distribution need: what is applied, the scripts that start a run, the pages, and the tests that
# pages and `show` name. The tool itself is installed separately; Dockerfiles, which copy it from a checkout, are left
# out.
_FOLDERS = ("manifests", "patches", "LICENSES", "docs", "scripts", "standins", "tests/behaviour")
_FILES = ("LICENSE", "NOTICE", "README*.md", "examples/README.md")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class UnavailableForm:
    """An unavailable form, and the error with the places tried."""

    upstream: str
    form: Form
    failure: SourceUnavailable


@dataclass(frozen=True)
class Created:
    """A written bundle, and its signature if a key was given."""

    path: Path
    size: int
    sha256: str
    signature: Signature | None
    index: Index
    missing: tuple[UnavailableForm, ...]
    plan: Plan


@dataclass(frozen=True)
class _Part:
    """A member and its bytes: already read, or in a file too large for that, which is hashed again when written."""

    member: BundleMember
    file: Path
    data: bytes | None = None


def create_bundle(
    dist: Distribution,
    profile: Profile,
    out: Path,
    options: SourceOptions,
    progress: Progress,
    *,
    skip_unavailable: bool = False,
    key: SigningKey | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> Created:
    """Write a profile's bundle to `out`, renamed into place once it is complete and, with a key, signed. `beside`: files to add to the
    distribution's folder, by name.

    Only what can be applied here is bundled: the stacks are built and compared with the lock. Raises what `apply`
    raises; SourceMismatch for a modified cache; WrongUse if `out` cannot be written.
    """
    plan = make_plan(dist, select(dist, profile, ()), options, progress, skip_unavailable=skip_unavailable)
    with cache.staging(options.cache) as folder:
        parts = _own_parts(dist, plan, options.cache)
        parts += [_made_part(dist.root / name, data) for name, data in (beside or {}).items()]
        sources: list[BundledSource] = []
        missing: list[UnavailableForm] = []
        for planned in plan.stacks:
            for form in forms_of(planned.stack):
                try:
                    source, part = _source(dist, planned.stack, form, options, progress, folder)
                except SourceUnavailable as failure:
                    missing.append(UnavailableForm(planned.upstream, form, failure))
                    continue
                sources.append(source)
                parts.append(part)
        gone = [(m.upstream, m.form) for m in missing]
        gone += [(s.upstream, f) for s in plan.skipped for f in forms_of(dist.stacks_of(profile)[s.upstream])]
        parts.sort(key=lambda part: part.member.name)
        index = Index(
            profile.name, tuple(sources), tuple(sorted(gone)), tuple(p.member for p in parts), profile.release
        )
        progress.start(f"writing {out.name}", index.size)
        try:
            size, digest, signature = _write(out, index, parts, progress, key)
        finally:
            progress.finish()
    return Created(out, size, digest, signature, index, tuple(missing), plan)


def distribution_files(root: Path) -> list[Path]:
    """Return the distribution's files to bundle, below the root, sorted.

    Excludes hidden files, leftovers of editors and Python, and in a git checkout ignored files, so that two checkouts
    of one revision give the same bundle. Raises BadManifest for links and devices, WrongUse for untracked files.
    """
    found = [path.relative_to(root) for pattern in _FILES for path in sorted(root.glob(pattern))]
    found = [path for path in found if not path.name.endswith("~")]
    for top in _FOLDERS:
        found += (path.relative_to(root) for path in _walk(root / top))
    found = _kept_by_git(root, found)
    for path in found:
        reason = why_refused(path.as_posix().encode("utf-8", "surrogateescape"))
        if reason is None and not fits(DISTRIBUTION + path.as_posix()):
            reason = "its name is too long for a bundle"
        if (root / path).is_symlink() or not (root / path).is_file():
            reason = "it is a link, or not a regular file"
        if reason:
            raise BadManifest(f"cannot bundle this file: {reason}", where=str(root / path))
    return sorted(found)


def _kept_by_git(root: Path, found: list[Path]) -> list[Path]:
    """Return the files that git tracks, or all outside a checkout.

    Raises WrongUse for a file neither tracked nor ignored, and for an ignored one that a stack may need, since no one
    decided that it should reach other machines; and where git cannot tell.
    """
    checkout = enclosing(root)
    if checkout is None:
        return found
    own = checkout.folder == root.absolute()
    try:
        listed = _listed(checkout, root, "--cached")
        ignored = _listed(checkout, root, "--others", "--ignored", "--exclude-standard")
    except GitFailed as failure:
        if not own:
            return found
        what = f"git cannot list the files of the distribution: {one_line(failure.what)}"
        raise WrongUse(what, where=str(root), hint="mend its repository, or bundle a copy without .git") from failure
    tracked = [path for path in found if path in listed]
    if not tracked and not own:  # in a checkout of another project
        return found
    stray = [p for p in found if p not in listed and (p not in ignored or p.parts[0] in ("manifests", "patches"))]
    if stray:
        more = f", and {len(stray) - 1} more" if len(stray) > 1 else ""
        what = f"git does not track this file{more}, which would go into the bundle"
        raise WrongUse(what, where=str(root / stray[0]), hint="`git add` it, or move it elsewhere")
    return tracked


def _listed(checkout: WorkTree, root: Path, *which: str) -> set[Path]:
    """Return what `git ls-files` lists below the root. The checkout may be another user's."""
    exclude = checkout.git_dir / "info/exclude"  # which is among the settings that do not count
    more = [f"--exclude-from={exclude}"] if "--ignored" in which and exclude.is_file() else []
    out = checkout.git("-C", str(root.absolute()), "ls-files", "-z", *which, *more, "--", *_FOLDERS, *_FILES)
    return {Path(os.fsdecode(path)) for path in out.split(b"\0") if path}


def _walk(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda e: e.name)
    for entry in ordered:
        if entry.name.startswith(".") or entry.name.endswith(("~", ".pyc")) or entry.name == "__pycache__":
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path)


def _own_parts(dist: Distribution, plan: Plan, cache_dir: Path) -> list[_Part]:
    """Return the distribution's files, each read once: what is hashed is what is written, even if edited meanwhile.

    Raises SourceMismatch if a manifest, patch or carried file is no longer what the plan was built from.
    """
    parts = [_own_part(dist.root, path) for path in distribution_files(dist.root)]
    read = {part.file: part.data for part in parts}
    proven = {}
    for patch in (step.patch for planned in plan.stacks for step in planned.result.steps):
        proven[patch.file] = patch.data
        proven |= {carried_folder(patch.file, path) / path: data for path, data in patch.carried.items()}
    for file, data in proven.items():
        if read.get(file) != data:
            raise _edited(file)
    now = Distribution.load(dist.root, cache_dir)
    if (
        replace(now, profiles=dist.profiles, named_release=dist.named_release) != dist
    ):  # these two depend on the run's options
        raise _edited(dist.root / "manifests")
    return parts


def _own_part(root: Path, path: Path) -> _Part:
    """Return a file of the distribution with its executable bit."""
    file = root / path
    try:
        with file.open("rb") as content:
            executable = bool(os.fstat(content.fileno()).st_mode & stat.S_IXUSR)
            data = content.read()
    except FileNotFoundError:
        raise _edited(file) from None
    member = BundleMember(DISTRIBUTION + path.as_posix(), len(data), hashlib.sha256(data).hexdigest(), executable)
    return _Part(member, file, data)


def _made_part(file: Path, data: bytes) -> _Part:
    return _Part(BundleMember(DISTRIBUTION + file.name, len(data), hashlib.sha256(data).hexdigest()), file, data)


def _edited(file: Path) -> SourceMismatch:
    return SourceMismatch("this was modified while the bundle was being created", where=str(file), hint="run it again")


def _part(name: str, file: Path) -> _Part:
    digest = hashlib.sha256()
    size = 0
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return _Part(BundleMember(name, size, digest.hexdigest()), file)


def _source(
    dist: Distribution, stack: Stack, form: Form, options: SourceOptions, progress: Progress, folder: Path
) -> tuple[BundledSource, _Part]:
    """Return one form of a pin, verified again, and its member. Raises SourceUnavailable."""
    name = stack.upstream
    if options.source not in ("auto", form):
        raise SourceUnavailable(f"{name}: only form {options.source} was requested", [])
    base = obtain_form(form, dist.upstream(name), stack, options, progress)
    progress.note(f"verifying {name}, {form}")
    check_base(base)
    if form == "git":
        member = f"sources/git/{name}/{base.commit}.pack"
        source = BundledSource(name, form, base.commit, None, member, tree=base.tree)
        return source, _part(member, write_pack(base, folder / f"{name}.git"))
    archive, sdist = cache.kept_archive(base.repo), stack.pin.sdist
    assert archive is not None and sdist is not None
    suffix = ".zip" if archive.name.endswith(".zip") else ".tar.gz"
    member = f"sources/sdist/{name}/{dist.upstream(name).sdist}-{sdist.version}{suffix}"
    part = _part(member, archive)
    if part.member.sha256 != sdist.sha256:
        raise _edited(archive)
    return BundledSource(name, form, None, sdist.version, member, sha256=sdist.sha256), part


def write_pack(base: Base, folder: Path) -> Path:
    """Write the base's commit and its tree as one pack into `folder`; return the pack's path.

    Written anew, not copied: compression and order of the cache's pack depend on the server.
    """
    writer = PackWriter(stored=True)
    with ObjectReader(base.repo) as reader:
        kind, data = reader.read(base.commit)
        writer.add_known(base.commit, kind, data)
        blobs: set[str] = set()
        level, seen = [base.tree], {base.tree}
        while level:
            deeper: list[str] = []
            for oid, (kind, data) in zip(level, reader.read_many(level), strict=True):
                writer.add_known(oid, kind, data)
                entries = [entry for _, entry in parse_tree(data)]
                deeper += [e.id for e in entries if e.mode == FOLDER]
                blobs |= {e.id for e in entries if e.mode not in (FOLDER, GITLINK)}
            level = [oid for oid in dict.fromkeys(deeper) if oid not in seen]
            seen |= set(level)
        ordered = sorted(blobs)
        for oid, (kind, data) in zip(ordered, reader.read_many(ordered), strict=True):
            writer.add_known(oid, kind, data)
    pack = writer.write(folder)
    assert pack is not None
    return pack


def _write(
    out: Path, index: Index, parts: Sequence[_Part], progress: Progress, key: SigningKey | None
) -> tuple[int, str, Signature | None]:
    """Write the file and return its size, sha256 and signature."""
    for file_name in (out, signature_file(out)) if key else (out,):
        if file_name.is_dir():
            what = "this is a folder, but a bundle and its signature are files"
            raise WrongUse(what, where=str(file_name), hint="name another file with --out")
    try:
        with replacing(out) as file:
            writing = _Writing(file, progress)
            writing.all(index, parts)
            signature = key.sign_beside(out, file, writing.digest.hexdigest()) if key else None
    except OSError as error:
        raise error_type(error)(f"cannot write the bundle: {error.strerror}", where=str(out)) from error
    return writing.size, writing.digest.hexdigest(), signature


class _Writing:
    """Writes the bytes of a bundle, in order."""

    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        self._file = file
        self._progress = progress
        self.size = 0
        self.digest = hashlib.sha256()

    def all(self, index: Index, parts: Sequence[_Part]) -> None:
        text = render_index(index)
        self._whole(INDEX, text)
        self._whole(DIGEST, render_digest(hashlib.sha256(text).hexdigest()))
        for part in parts:
            self._part(part)
        self._put(END)

    def _whole(self, name: str, data: bytes) -> None:
        self._put(header(BundleMember(name, len(data), "")) + data + bytes(padding(len(data))))

    def _part(self, part: _Part) -> None:
        member, digest = part.member, hashlib.sha256()
        self._put(header(member))
        with part.file.open("rb") if part.data is None else io.BytesIO(part.data) as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
                self._put(chunk)
                self._progress.advance(len(chunk))
        if digest.hexdigest() != member.sha256:  # also if its size changed
            raise _edited(part.file)
        self._put(bytes(padding(member.size)))

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.size += len(data)
