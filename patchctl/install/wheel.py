"""Writes a wheel (PEP 427) of a tree: its packages as they are, or a line that leads to them (editable)."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

from patchctl import __version__
from patchctl.errors import WrongUse
from patchctl.git.objects import EXECUTABLE, REGULAR
from patchctl.install.installable import InstallTree
from patchctl.install.metadata import Metadata, normalised

RECORD_FILE = "patchctl.json"
_WHEEL = f"Wheel-Version: 1.0\nGenerator: patchctl {__version__}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
Content = dict[str, tuple[int, bytes]]
"""A wheel's files by their path in it: mode and bytes."""


def write_wheel(item: InstallTree, metadata: Metadata, folder: Path, *, editable: bool) -> Path:
    """Write the wheel into `folder` and return its path. Raises WrongUse for a tree that no line of a .pth can name."""
    content = _pointer(item, metadata) if editable else _packages(item, generated=True)
    content |= {f"{metadata.folder}/{path}": (REGULAR, data) for path, data in metadata.files.items()}
    content[f"{metadata.folder}/WHEEL"] = (REGULAR, _WHEEL.encode("ascii"))
    name = normalised(metadata.name).replace("-", "_")
    target = folder / f"{name}-{metadata.version}-py3-none-any.whl"
    return _write(target, content, item, metadata.folder, editable)


def complete_wheel(item: InstallTree, built: Path, folder: Path) -> Path:
    """The wheel of upstream's own build with every file of the packages: as upstream picks them, some that the tree has
    are not in it. What the build made (extensions, version files) stays as it made it.
    """
    with zipfile.ZipFile(built) as archive:
        names = [info for info in archive.infolist() if not info.is_dir()]
        runs = {i.filename: EXECUTABLE if i.external_attr >> 16 & 0o100 else REGULAR for i in names}
        content = {i.filename: (runs[i.filename], archive.read(i)) for i in names}
    record = next(name for name in content if name.endswith(".dist-info/RECORD") and name.count("/") == 1)
    del content[record]
    content |= _packages(item, generated=False)
    return _write(folder / built.name, content, item, record.partition("/")[0], editable=False)


def _write(target: Path, content: Content, item: InstallTree, folder: str, editable: bool) -> Path:
    content[f"{folder}/{RECORD_FILE}"] = (REGULAR, _origin(item, editable))
    content[f"{folder}/RECORD"] = (REGULAR, _record(content, f"{folder}/RECORD"))
    with zipfile.ZipFile(target, "w") as out:
        for path, (mode, data) in content.items():
            info = zipfile.ZipInfo(path, _EPOCH)
            info.external_attr = (0o100755 if mode == EXECUTABLE else 0o100644) << 16
            out.writestr(info, data)
    return target


def _packages(item: InstallTree, *, generated: bool) -> Content:
    """Every file of the packages, whatever upstream's package_data names: the installed package is the tree's."""
    found: Content = {}
    for path, mode, data in item.files(generated=generated):
        for package, inner in item.packages.items():
            if path.startswith(f"{inner}/"):
                found[package.replace(".", "/") + path.removeprefix(inner)] = (mode, data)
    return found


def _pointer(item: InstallTree, metadata: Metadata) -> Content:
    """One .pth file with the folders that hold the packages: read at every start, so that it follows each apply."""
    folders = []
    for package, inner in item.packages.items():
        above = inner.removesuffix(package.replace(".", "/"))
        if above == inner:
            raise WrongUse(f"{package} lies in {inner}, which no path leads to", hint="install without --editable")
        folders.append(str(item.folder / above).rstrip("/"))
    if not all(folder.isprintable() for folder in folders):
        raise WrongUse("no .pth file can name this folder", where=str(item.folder), hint="install without --editable")
    text = "".join(f"{folder}\n" for folder in dict.fromkeys(folders))
    return {f"__editable__.{metadata.folder.removesuffix('.dist-info')}.pth": (REGULAR, text.encode("utf-8"))}


def _origin(item: InstallTree, editable: bool) -> bytes:
    """What was installed, beside the package's metadata: for people, and for the next install."""
    state = item.state
    data: Mapping[str, object] = {
        "schema": 1,
        "upstream": item.upstream,
        "folder": str(item.folder),
        "editable": editable,
        "stack": state.stack,
        "form": state.form,
        "tip_commit": state.tip_commit,
        "tip_tree": state.tip_tree,
    }
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode("ascii")


def _record(content: Content, own: str) -> bytes:
    """The list of files by which pip uninstalls: CSV, since vllm has names with commas in them."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerows((path, _digest(data), len(data)) for path, (_, data) in content.items())
    rows.writerow((own, "", ""))
    return text.getvalue().encode("utf-8")


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
