"""Packages as pip and uv really install them, for tests that patch them in site-packages."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest


def make_wheel(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    """A wheel of pure Python."""
    info = f"{name}-1.0.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in members.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{_quoted(p)},,\n" for p in (*members, f"{info}/RECORD")))
    return wheel


def _quoted(path: str) -> str:
    return f'"{path}"' if "," in path else path


class Env:
    """A virtual environment that `installer` (pip, or uv with hard links into a cache of its own) fills."""

    def __init__(self, folder: Path, installer: str) -> None:
        self.folder = folder
        self.installer = installer
        self.cache = folder.parent / "uv-cache"
        pip = () if installer == "pip" else ("--without-pip",)
        subprocess.run([sys.executable, "-m", "venv", *pip, str(folder)], check=True)

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def site(self) -> Path:
        (found,) = (self.folder / "lib").glob("python3*/site-packages")
        return found

    def install(self, *what: str, mode: str = "hardlink") -> None:
        if self.installer == "pip":
            self._run([self.python, "-m", "pip", "install", "--no-deps", "--quiet", *what])
        else:
            more = ("--python", self.python, "--link-mode", mode, "--cache-dir", str(self.cache))
            self._run([str(uv()), "pip", "install", "--quiet", "--no-deps", *more, *what])

    def uninstall(self, name: str) -> None:
        assert self.installer == "pip"
        self._run([self.python, "-m", "pip", "uninstall", "--quiet", "--yes", name])

    def says(self, code: str) -> str:
        """What a program prints."""
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [self.python, "-c", code], env=clean, capture_output=True, text=True, check=False, cwd="/"
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 and any(
            w in done.stderr for w in ("No matching distribution", "error sending request")
        ):
            pytest.skip(f"the package index cannot be reached: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr


def uv() -> Path:
    """The uv of this environment, which pyproject's test extra brings."""
    import importlib.util

    if importlib.util.find_spec("uv") is None:
        pytest.skip("uv is not installed: pip install uv")
    from uv import find_uv_bin

    return Path(find_uv_bin())


def false_lines(site: Path, name: str) -> list[str]:
    """The lines of a distribution's RECORD that do not say what lies on the disk, and its files that no line names."""
    (record,) = site.glob(f"{name}-*.dist-info/RECORD")
    wrong, seen = [], set()
    with record.open(newline="", encoding="utf-8") as rows:
        for path, digest, size in csv.reader(rows):
            assert path not in seen, f"{path} stands twice"
            seen.add(path)
            file = site / path
            if not file.is_file() or (digest and _line(file) != (digest, size)):
                wrong.append(path)
    return wrong


def listed(site: Path, name: str) -> set[str]:
    (record,) = site.glob(f"{name}-*.dist-info/RECORD")
    with record.open(newline="", encoding="utf-8") as rows:
        return {row[0] for row in csv.reader(rows)}


def _line(file: Path) -> tuple[str, str]:
    data = file.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(data))
