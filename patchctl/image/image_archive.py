"""An image in a tar archive: a saved image (`docker save`), an OCI layout (`buildah push IMAGE oci-archive:FILE`), or the root file
system of a container (`docker export`).

Nothing of it is trusted: every blob is compared with its digest, and of the layers only the folders that are asked for are unpacked,
never through a link, never outside the folder to unpack into, and up to the limits of the user's configuration.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import posixpath
import re
import shlex
import shutil
import tarfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from patchctl.errors import SourceMismatch, WrongUse
from patchctl.source.archive import UNPACKED_FREE, raise_limit
from patchctl.source.types import ImageLimits

_JSON_LIMIT = 16 << 20
# Python's tarfile holds every extended header before a member, in a chain as deep as its recursion goes.
_EXTENSION_LIMIT = 256 << 10
_EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_GLOBALS_LIMIT = 100
_OF_A_FILE = frozenset(("path", "linkpath", "size", "mtime"))
# What tarfile and Go's archive/tar, which engines use, read alike before a member: of several pax headers Go takes the last,
# tarfile the first; of a pax header and a GNU long name Go takes the name, tarfile what comes first.
_CHAIN = re.compile(b"g*(x|L|K|LK|KL)?")
_GZIP = b"\x1f\x8b"
_DAMAGED = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)
_DEPTH = 200
_LONGEST_LINK = 3000  # of the system's 4095, less what leads up from _DEPTH
_CHUNK = 1 << 20
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_NOWHERE = f"{_WHITEOUT}elsewhere"  # no file of a layer has such a name
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_BLOB = re.compile("blobs/sha256/([0-9a-f]{64})")
_DIGEST = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?")
# Folders of every container, and of no saved image: one file could be taken for either.
_OF_A_ROOT = frozenset(("bin", "dev", "etc", "home", "lib", "opt", "proc", "root", "sbin", "sys", "tmp", "usr", "var"))

_Parts = tuple[str, ...]


@dataclass(frozen=True)
class _Layer:
    """A layer: its member of the archive and the sha256 of these bytes; None for a root file system, which has none."""

    member: str | None
    sha256: str | None


_FILES = _Layer(None, None)


@dataclass(frozen=True)
class ImageFile:
    """An archive, what the user calls it, and where it is the files of a container, their configuration, and the folders of the
    container that other files are mounted over.
    """

    path: Path
    name: str
    config: Mapping[str, Any] | None = None
    mounted: tuple[str, ...] = ()


class ImageArchive:
    """An open image. Of the root file system of a container whose configuration is not known `labels` is None, and `environment` empty."""

    def __init__(self, file: ImageFile, archive: tarfile.TarFile, limits: ImageLimits) -> None:
        self._file, self._archive, self._limits = file, archive, limits
        self._names = self._bytes_written = 0
        self._members = dict[_Parts, tarfile.TarInfo]()
        same = dict[_Parts, _Parts]()  # docker before 25 writes a layer that is there already as a link to it
        for info in self._within_names(archive):
            if info.isfile():
                self._members[_path(info.name)] = info
            elif info.issym() and info.name.endswith("/layer.tar"):
                to = posixpath.normpath(posixpath.join(posixpath.dirname(info.name), info.linkname))
                if not to.startswith(("../", "/")):
                    same[_path(info.name)] = _path(to)
        self._members |= {path: self._members[to] for path, to in same.items() if to in self._members}
        held, self._layers = ({}, [_FILES]) if file.config is not None else self._found()
        inner = file.config or held.get("config") or {}
        known = file.config is not None or self._layers != [_FILES]
        self.labels: dict[str, str] | None = dict(inner.get("Labels") or {}) if known else None
        words = (word.partition("=") for word in inner.get("Env") or [])
        self.environment = {name: value for name, _, value in words}

    def unpack(self, to: Path, folders: Sequence[PurePosixPath]) -> None:
        """Write these folders of the image, absolute paths, below `to`, as the layers make them.

        Raises SourceMismatch for a layer that is not what the image's manifest names, WrongUse for one that cannot be read, is over a
        limit, or that engines read in different ways.
        """
        with _readable(self._file):
            for number, layer in enumerate(self._layers):
                self._unpack(layer, to / f".layer-{number}", to, [folder.relative_to("/").parts for folder in folders])

    def _unpack(self, layer: _Layer, staged: Path, to: Path, wanted: Sequence[_Parts]) -> None:
        gone: list[tuple[_Parts, bool]] = []
        devices: list[_Parts] = []
        held = set[_Parts]()  # the names in the wanted folders, and which folders above them the layer has a name in
        for info, data in self._entries(layer):
            path = _path(info.name)
            name = path[-1] if path else ""
            named = path[:-1] if name.startswith(_WHITEOUT) else path
            if any(named[: len(one)] == one for one in wanted):
                held.add(named)
            else:
                held.update(one[:n] for one in wanted for n in range(1, len(one)) if named[:n] == one[:n])
            if name.startswith(_WHITEOUT):
                above = path[:-1]
                hidden = above if name == _OPAQUE else (*above, _named(name.removeprefix(_WHITEOUT)))
                if any(hidden[: len(one)] == one or one[: len(hidden)] == hidden for one in wanted):
                    self._count(1, 0)
                    gone.append((hidden, name == _OPAQUE))
            elif any(path[: len(one)] == one for one in wanted):
                devices += [] if self._put(staged, path, info, data) else [path]
            elif any(one[: len(path)] == path for one in wanted) and not info.isdir():
                raise self._wrong(f"/{'/'.join(path)} is no folder, and the trees are below it")
        names = sorted(held)  # what is below a path follows it
        for path, only_below in gone:  # engines differ in whether a whiteout takes away what its own layer brings
            at = bisect_left(names, path)
            if not only_below and [one[: len(path)] for one in names[at : at + 1]] == [path]:
                raise self._wrong(f"a layer both has /{'/'.join(path):.100} and takes it away")
        for path, only_below in [*gone, *((path, False) for path in devices)]:
            for one in wanted:
                _take_away(to, path, one, only_below=only_below)
        if staged.exists():
            _merge(staged, to)

    def _found(self) -> tuple[dict[str, Any], list[_Layer]]:
        """The configuration and the layers, from the lowest up."""
        docker, index = (name if (name,) in self._members else None for name in ("manifest.json", "index.json"))
        if not docker and not index:
            return {}, [_FILES]
        if both := next((path for path in self._members if path[0] in _OF_A_ROOT), None):
            what = (
                f"it holds /{docker or index}, as a saved image does, and /{'/'.join(both):.100}, as a container does"
            )
            raise self._wrong(what, "name the container, or the image, as docker or podman has it, in place of a file")
        if not index:
            return self._of_docker()
        (manifest,) = self._manifests(self._json("index.json"))
        layers = [_Layer(self._blob(one), one["digest"].partition(":")[2]) for one in manifest["layers"]]
        if docker:  # which of the two an engine reads is its own choice
            named = [self._blob(manifest["config"]), *(layer.member or "" for layer in layers)]
            image = self._docker_image()
            if [*map(self._member, named)] != [*map(self._member, [image["Config"], *image["Layers"]])]:
                raise self._mismatch("what manifest.json names", "index.json names")
        return self._checked_json(manifest["config"]), layers

    def _docker_image(self) -> dict[str, Any]:
        images = self._json("manifest.json")
        if len(images) != 1:
            raise self._wrong(f"it holds {len(images)} images", "save one image alone")
        image: dict[str, Any] = images[0]
        return image

    def _of_docker(self) -> tuple[dict[str, Any], list[_Layer]]:
        """What manifest.json names. Names that say a digest have to be right; an image's id is the digest of its configuration."""
        image = self._docker_image()
        data = self._bytes(image["Config"])
        if (said := _DIGEST.fullmatch(image["Config"])) and said[1] != hashlib.sha256(data).hexdigest():
            raise self._mismatch(image["Config"])
        config = _parsed(data)
        digests = [one.partition(":")[2] for one in config["rootfs"]["diff_ids"]]
        for name, digest in zip(image["Layers"], digests, strict=True):
            if (said := _BLOB.fullmatch(name)) and said[1] != digest:
                raise self._mismatch(name)
        return config, [_Layer(*pair) for pair in zip(image["Layers"], digests, strict=True)]

    def _manifests(self, index: dict[str, Any]) -> list[dict[str, Any]]:
        """The one manifest of an image, however many tags name it; attestations beside it, whose platform is unknown, are none."""
        named = [one for one in index["manifests"] if one.get("platform", {}).get("os") != "unknown"]
        found = list({one["digest"]: one for one in named}.values())
        if len(found) != 1:
            raise self._wrong(f"it holds {len(found)} images", "save one image, of one platform")
        held = self._checked_json(found[0])
        return self._manifests(held) if held.get("mediaType", found[0].get("mediaType")) in _INDEXES else [held]

    def _blob(self, descriptor: dict[str, Any]) -> str:
        kind, _, digest = str(descriptor["digest"]).partition(":")
        if kind != "sha256":
            raise self._wrong(f"it names a blob by {kind!r:.20}, and not by sha256")
        return f"blobs/sha256/{digest}"

    def _checked_json(self, descriptor: dict[str, Any]) -> dict[str, Any]:
        name = self._blob(descriptor)
        data = self._bytes(name)
        if hashlib.sha256(data).hexdigest() != name.rpartition("/")[2]:
            raise self._mismatch(name)
        found = _parsed(data)
        if not isinstance(found, dict):
            raise ValueError(f"{name} is no JSON object")
        return found

    def _json(self, name: str) -> Any:
        return _parsed(self._bytes(name))

    def _bytes(self, name: str) -> bytes:
        info = self._member(name)
        if info.size > _JSON_LIMIT:
            raise self._wrong(f"{name!r:.100} is larger than {_JSON_LIMIT >> 20} MiB")
        return self._stream(info).read()

    def _member(self, name: str) -> tarfile.TarInfo:
        info = self._members.get(_path(name))
        if info is None:
            raise self._wrong(f"it names {name!r:.100}, which it does not hold")
        return info

    def _stream(self, info: tarfile.TarInfo) -> IO[bytes]:
        stream = self._archive.extractfile(info)
        assert stream is not None, "only files are members"
        return stream

    def _entries(self, layer: _Layer) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
        if layer.member is None:
            for info in self._archive:
                yield info, self._archive.extractfile(info) if info.isfile() else None
            return
        packed = self._member(layer.member)
        stream = _Hashed(self._stream(packed))
        try:
            unpacked = self._unpacked(packed, stream)
            with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Entry) as inner:  # type: ignore[call-overload]
                for one in inner:
                    inner.members.clear()  # it keeps every header it read
                    yield one, inner.extractfile(one) if one.isfile() else None
        except _DAMAGED as error:
            hint = "layers have to be plain tar or gzip; save the image again with `docker save` or `--compression-format gzip`"
            raise self._wrong(f"the layer {layer.member!r:.100} cannot be read: {error}", hint) from error
        if stream.whole() != layer.sha256:
            raise self._mismatch(layer.member)

    def _unpacked(self, packed: tarfile.TarInfo, stream: _Stream) -> _Stream:
        """The bytes of a layer's tar archive, at most `ratio` times the packed ones."""
        if self._stream(packed).read(len(_GZIP)) != _GZIP:
            return stream
        ratio = self._limits.ratio
        what = f"{packed.name!r:.100} unpacks to more than {ratio} times its {packed.size} bytes"
        return _Bounded(
            gzip.GzipFile(fileobj=stream, mode="rb"),  # type: ignore[call-overload]
            max(UNPACKED_FREE, ratio * packed.size),
            self._over("ratio", what),
        )

    def _within_names(self, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        for number, info in enumerate(archive):
            if number >= self._limits.names:
                raise self._over("names", f"it has more than {self._limits.names} names")
            yield info

    def _count(self, names: int, size: int) -> None:
        """Note what is about to be written. Raises WrongUse where that is more than the limits."""
        self._names, self._bytes_written = self._names + names, self._bytes_written + size
        if self._names > self._limits.names:
            raise self._over("names", f"its trees have more than {self._limits.names} names")
        if self._bytes_written > self._limits.unpacked_mib << 20:
            raise self._over("unpacked_mib", f"its trees unpack to more than {self._limits.unpacked_mib} MiB")

    def _over(self, limit: str, what: str) -> WrongUse:
        return WrongUse(what, where=self._file.name, hint=raise_limit("images", limit))

    def _put(self, staged: Path, path: _Parts, info: tarfile.TarInfo, data: IO[bytes] | None) -> bool:
        """Write an entry of a layer. False for what no tree has, which is then missing: devices and pipes."""
        if len(path) > _DEPTH:
            raise self._wrong(f"/{'/'.join(path)!r:.100} is more than {_DEPTH} folders deep")
        if info.issparse():  # a few bytes could stand for any number of them
            raise self._wrong(f"/{'/'.join(path)!r:.100} is a sparse file")
        target = staged.joinpath(*path)
        self._count(_make_folder(staged, path if info.isdir() else path[:-1]), 0)
        if info.isdir():
            return True
        self._count(1, info.size)
        _remove(target)
        if info.issym():
            target.symlink_to(_link_within(path, info.linkname))
            return True
        if info.islnk():
            other = next(
                (one for one in (staged, staged.parent) if _is_file(one.joinpath(*_path(info.linkname)))), None
            )
            if other is None:
                raise self._wrong(f"/{'/'.join(path)} is a hard link to a file elsewhere")
            copied = other.joinpath(*_path(info.linkname))
            self._count(0, copied.stat().st_size)
            shutil.copy2(copied, target, follow_symlinks=False)
            return True
        if data is None:
            return False
        with target.open("xb") as out:
            shutil.copyfileobj(data, out, _CHUNK)
        target.chmod(info.mode & 0o755 | 0o600)
        os.utime(target, (info.mtime, info.mtime))  # byte code names its source's
        return True

    def _wrong(self, what: str, hint: str | None = None) -> WrongUse:
        return WrongUse(f"not an image that can be read: {what}", where=self._file.name, hint=hint or _HINT)

    def _mismatch(self, name: str, named: str = "the image's manifest names") -> SourceMismatch:
        return SourceMismatch(f"{name:.100} is not what {named}", where=self._file.name, hint="save it again")


_HINT = "`docker save IMAGE --output FILE`, `buildah push IMAGE oci-archive:FILE` or `docker export CONTAINER --output FILE` write one"


@contextmanager
def open_image(file: ImageFile, limits: ImageLimits) -> Iterator[ImageArchive]:
    """Open an image. Raises WrongUse if the file is none or over a limit, SourceMismatch if a part is not what its digest says."""
    if not file.path.exists():
        raise WrongUse("there is no such file", where=file.name, hint=_HINT)
    if not file.path.is_file():
        hint = "`... | patchctl image verify -` reads a pipe"
        if file.path.is_dir():
            hint = f"`tar -C {shlex.quote(file.name)} -cf - . | patchctl image verify -` reads an unpacked image"
        raise WrongUse("not a regular file", where=file.name, hint=hint)
    with file.path.open("rb") as opened:
        start = opened.read(8)
    for magic, program in _COMPRESSED.items():
        if start.startswith(magic):
            hint = f"`{program} -dc FILE | patchctl image verify -`"
            raise WrongUse(f"the image is compressed with {program}", where=file.name, hint=hint)
    with ExitStack() as held:
        with _readable(file):
            image = ImageArchive(file, held.enter_context(tarfile.open(file.path, "r:", tarinfo=_Entry)), limits)
        yield image


@contextmanager
def _readable(file: ImageFile) -> Iterator[None]:
    """What is wrong with an archive, as one error."""
    try:
        yield
    except (*_DAMAGED, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        what = f"not an image that can be read: {type(error).__name__}: {error}"
        raise WrongUse(what, where=file.name, hint=_HINT) from error


class _Entry(tarfile.TarInfo):
    """A header. Refuses those on which tarfile spends memory or time without bound; `_proc_member` is what it offers to override.
    Refuses those too that engines read in another way: a file would be verified under a name that it has not in a container.
    """

    _before = b""  # the types of the extended headers before it

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _EXTENSIONS and self.size > _EXTENSION_LIMIT:
            raise tarfile.ReadError(f"an extended header announces {self.size} bytes; the limit is {_EXTENSION_LIMIT}")
        if len(archive.pax_headers) > _GLOBALS_LIMIT:
            raise tarfile.ReadError(f"more than {_GLOBALS_LIMIT} global headers")
        if of_all := _OF_A_FILE & archive.pax_headers.keys():  # engines ignore it
            raise tarfile.ReadError(f"a global header before {self.name!r:.100} says the {min(of_all)} of every file")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise self._sparse()
        found: _Entry = super()._proc_member(archive)  # type: ignore[misc]
        if self.type in _EXTENSIONS:
            found._before = self.type + found._before
            # Of the type that is older than these headers, tarfile makes a folder by the short name, and Go by the long one.
            old = found.type == tarfile.AREGTYPE or (found.isdir() and found.size > 0)
            if old or not _CHAIN.fullmatch(found._before):
                raise tarfile.ReadError(f"{found.name!r:.100} has extended headers that engines read in another way")
        return found

    def _apply_pax_info(self, headers: Mapping[str, str], encoding: str, errors: str) -> None:
        if any(key.startswith("GNU.sparse.") for key in headers):  # engines take some only together
            raise self._sparse()
        empty = [key for key in _OF_A_FILE & headers.keys() if not headers[key]]
        if empty:  # to engines it is not there
            raise tarfile.ReadError(f"an extended header says an empty {min(empty)} of {self.name!r:.100}")
        super()._apply_pax_info(headers, encoding, errors)  # type: ignore[misc]

    def _block(self, count: int) -> int:
        if count < 0:  # CVE-2025-8194: older Pythons go back and never end
            raise tarfile.ReadError("a negative size")
        blocks: int = super()._block(count)  # type: ignore[misc]
        return blocks

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise self._sparse()

    def _sparse(self) -> tarfile.ReadError:
        """Its map has no end that is known before, and a few bytes of it could stand for any number."""
        return tarfile.ReadError(f"{self.name!r:.100} is a sparse file")


class _Object(dict[str, Any]):
    """A JSON object. Engines take a key in any case, and of several the last: a key that is read is refused in another case. Labels,
    which are the image's own names, may differ in case alone.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) != len(pairs):  # engines read two objects of one key as one
            raise ValueError("a JSON object has a key twice")

    def __getitem__(self, key: str) -> Any:
        self.get(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        if other := next((one for one in self if one != key and one.casefold() == key.casefold()), None):
            raise ValueError(f"the key {key!r} is spelled {other!r:.100}")
        return super().get(key, default)


def _parsed(data: bytes) -> Any:
    return json.loads(data, object_pairs_hook=_Object)


class _Stream(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Bounded:
    """A stream that ends with an error once more than `most` bytes were read of it."""

    def __init__(self, stream: _Stream, most: int, over: WrongUse) -> None:
        self._stream, self._left, self._over = stream, most, over

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise self._over
        return data


class _Hashed:
    """A stream that hashes what is read of it."""

    def __init__(self, stream: _Stream) -> None:
        self._stream, self._digest = stream, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._digest.update(data)
        return data

    def whole(self) -> str:
        """Read to the end, and return the sha256 of all of it."""
        while self.read(_CHUNK):
            pass
        return self._digest.hexdigest()


def _path(name: str) -> _Parts:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts or "\0" in name:
        raise ValueError(f"it has a member {name!r:.100}")
    return parts


def _named(name: str) -> str:
    """The name of what a layer takes away. A name that leads up would take away what is here."""
    if name in ("", ".", ".."):
        raise ValueError(f"it takes {name!r} away")
    return name


def _take_away(to: Path, path: _Parts, wanted: _Parts, *, only_below: bool) -> None:
    """Remove what a layer says is gone of the layers below it: a path, or only what is below it. Nothing outside the wanted folder."""
    if path[: len(wanted)] != wanted and wanted[: len(path)] != path:
        return
    target = to.joinpath(*max(path, wanted, key=len))
    if only_below and len(path) >= len(wanted) and target.is_dir() and not target.is_symlink():
        for entry in target.iterdir():
            _remove(entry)
    else:
        _remove(target)


def _merge(staged: Path, to: Path) -> None:
    """Move what a layer has over what the layers below it had."""
    for entry in [*staged.iterdir()]:
        there = to / entry.name
        if entry.is_dir() and not entry.is_symlink() and there.is_dir() and not there.is_symlink():
            _merge(entry, there)
        else:
            _remove(there)
            entry.rename(there)
    staged.rmdir()


def _make_folder(staged: Path, path: _Parts) -> int:
    """Create a folder below `staged`; a layer may name a file before its folder, and write nothing through a link. Return how many were made."""
    staged.mkdir(exist_ok=True)
    made = 0
    for part in path:
        staged /= part
        if staged.is_symlink() or (staged.exists() and not staged.is_dir()):
            staged.unlink()
        if not staged.exists():
            staged.mkdir()
            made += 1
    return made


def _link_within(path: _Parts, link: str) -> str:
    """Where a link leads, as one that stays below the folder to unpack into: the image's root is that folder.

    What a name leads to may be a link too, so that `..` behind one could lead anywhere: such a link becomes one to a name that is
    never unpacked. It is there all the same, as Python follows it in the image.
    """
    parts = link.split("/")
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    if ".." in parts[up:] or not link or len(os.fsencode(link)) > _LONGEST_LINK:
        return _NOWHERE
    above = len(path) - 1
    if link.startswith("/") or up > above:  # above the root is the root
        return "/".join([*[".."] * above, *filter(None, parts[up:])]) or "."
    return link


def cut_links(to: Path, folders: Sequence[PurePosixPath]) -> None:
    """Make links that lead to no place in these folders of an unpacked image lead nowhere: the folders above them are there in part."""
    held = [to.resolve() / folder.relative_to("/") for folder in folders]
    for folder, below, files in os.walk(to):
        for link in (Path(folder, name) for name in [*below, *files] if os.path.islink(os.path.join(folder, name))):
            if link.exists() and not any(link.resolve().is_relative_to(one) for one in held):
                link.unlink()
                link.symlink_to(_NOWHERE)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.resolve() == Path(os.path.abspath(path))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
