"""What an install that was stopped leaves, and the note by which the next one takes it away.

pip writes a package's RECORD last: a pip that was killed before leaves files that no uninstall knows, and a `.dist-info`
that stops every later install (`uninstall-no-record-file`). So what pip is about to write and to take away is noted in the
environment first, and the note goes when pip has ended well.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from patchctl.atomic import replace_file
from patchctl.errors import WrongUse
from patchctl.install.environment import Environment, info_folder
from patchctl.install.metadata import normalised

_NOTE = ".patchctl-installing.json"
_SET_ASIDE = "~"
"""How pip names what it is taking away: `~ackage` for `package`, beside it."""


@dataclass(frozen=True)
class _Package:
    """One wheel: its `.dist-info`, the one that it replaces, and the files that are pip's, as paths below site-packages."""

    info: str
    old: str | None
    files: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """An install that was stopped: its packages, and what had been release aside by others before it began."""

    site: Path
    packages: tuple[_Package, ...]
    aside: frozenset[str]

    def halves(self) -> tuple[_Package, ...]:
        """The packages of which something is there, or was, and neither the new version nor the old one has its RECORD."""
        return tuple(
            package
            for package in self.packages
            if not any((self.site / info / "RECORD").is_file() for info in _infos(package))
            and (package.old or any((self.site / name).exists() for name in (package.info, *package.files)))
        )


def write_note(environment: Environment, wheels: Sequence[Path]) -> None:
    """Say in the environment what pip will write there. Raises OSError."""
    site = environment.site[0]
    packages = [_package(environment, site, wheel) for wheel in wheels]
    folders = _folders(site, (name for p in packages for name in p.files))
    aside = sorted(str(path.relative_to(site)) for path in _set_aside(folders))
    data = {"packages": [{"info": p.info, "old": p.old, "files": p.files} for p in packages], "aside": aside}
    replace_file(site / _NOTE, json.dumps(data).encode("utf-8"))


def forget(environment: Environment) -> None:
    """pip has ended well."""
    (environment.site[0] / _NOTE).unlink(missing_ok=True)


def read_note(environment: Environment) -> Note | None:
    """The note of an install that was stopped. Raises WrongUse for one that is not ours, OSError."""
    file = environment.site[0] / _NOTE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        packages = tuple(_Package(p["info"], p["old"], tuple(p["files"])) for p in data["packages"])
        note = Note(file.parent, packages, frozenset(data["aside"]))
        named = [*note.aside, *(name for p in packages for name in (*p.files, *_infos(p)))]
        if not all(_below(name) for name in named):
            raise ValueError("a path that leads out of it")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        hint = "look what is in it, and delete it; then install again"
        raise WrongUse(f"this note of an install cannot be read: {error}", where=str(file), hint=hint) from error
    return note


def take_away(note: Note) -> None:
    """Take away what pip left half done; the files of nobody else. The note goes last. Raises OSError."""
    site = note.site
    for package in note.halves():
        for name in _infos(package):
            if (site / name).is_dir() and not (site / name).is_symlink():
                shutil.rmtree(site / name)
        for name in package.files:
            _remove(site / name)
    folders = _folders(site, (name for p in note.packages for name in p.files))
    for path in list(_set_aside(folders)):
        if str(path.relative_to(site)) not in note.aside:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for folder in sorted(folders - {site}, key=lambda f: len(f.parts), reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it is empty
    (site / _NOTE).unlink()


def _package(environment: Environment, site: Path, wheel: Path) -> _Package:
    with zipfile.ZipFile(wheel) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
    info = info_folder(wheel)
    old = _old_info(site, info.partition("-")[0]) if environment.replaced(info.partition("-")[0]) else None
    owned = _recorded(site / old / "RECORD") if old is not None else frozenset[str]()
    # What lay there and is nobody's stays: a file of the user's, in a folder that has a package's name.
    new = {name for name in names if name in owned or not (site / name).exists()}
    return _Package(info, old, tuple(sorted(filter(_below, new | owned))))


def _old_info(site: Path, name: str) -> str | None:
    found = [
        path.name for path in site.glob("*.dist-info") if normalised(path.name.partition("-")[0]) == normalised(name)
    ]
    return found[0] if found else None


def _recorded(record: Path) -> frozenset[str]:
    try:
        rows = csv.reader(io.StringIO(record.read_text(encoding="utf-8")))
    except OSError:
        return frozenset()
    return frozenset(row[0] for row in rows if row)


def _below(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _infos(package: _Package) -> tuple[str, ...]:
    return (package.info,) if package.old is None else (package.info, package.old)


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
    if file.suffix == ".py" and (cache := file.parent / "__pycache__").is_dir():
        for compiled in cache.glob(f"{file.stem}.*.pyc"):
            compiled.unlink()


def _folders(site: Path, names: Iterable[str]) -> set[Path]:
    """Every folder below `site` that these files lie in, those of compiled code and `site` with them."""
    found = {site}
    for parent in {PurePosixPath(name).parent for name in names}:
        found.update(site / above for above in (parent, *parent.parents, parent / "__pycache__"))
    return {folder for folder in found if folder.is_dir() and not folder.is_symlink()}


def _set_aside(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in folder.iterdir() if path.name.startswith(_SET_ASIDE))
