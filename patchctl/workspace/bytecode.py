"""Byte code that Python takes in the place of a tree's sources: whether it is what their compilation gives.

Python believes byte code whose header has its source's time and size, or says that nothing is to be compared (PEP 552). It is
compiled again here, in a process of its own, since reading byte code of unknown origin may end the interpreter.
"""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from patchctl.workspace.imports import modules_by_folder

_NAME = re.compile(rb"([^.]+)\.([a-z]+-?\d+)(?:\.opt-([12]))?\.pyc")
_OURS = (sys.implementation.cache_tag or "").encode()
_HASHED, _COMPARED = 1, 2
# Reads lines `LEVEL BYTECODE SOURCE` (paths in hexadecimal digits) and answers each with 1 where they agree.
_COMPARE = """
import marshal, sys
for line in sys.stdin:
    level, code, source = line.split()
    same = False
    try:
        with open(bytes.fromhex(code), "rb") as file:
            have = marshal.loads(file.read()[16:])
        with open(bytes.fromhex(source), "rb") as file:
            wanted = compile(file.read(), have.co_filename, "exec", dont_inherit=True, optimize=int(level))
        same = have == wanted
    except Exception:
        pass
    print(int(same), flush=True)
"""


def forged(folder: Path, files: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Byte code that Python takes for one of these modules: what is not its compilation; and what another Python made, which
    this one cannot tell."""
    taken = list(_taken(os.fsencode(folder), files))
    mine = [one for one in taken if one[1] == _OURS]
    others = [path for path, tag, *_ in taken if tag != _OURS]
    lines = [f"{level} {_hex(folder, path)} {_hex(folder, module)}\n" for path, _, level, module in mine]
    return [one[0] for one, same in zip(mine, _same(lines), strict=True) if not same], others


def _same(lines: list[str]) -> Iterator[bool]:
    while lines:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "ignore", "-c", _COMPARE],
            input="".join(lines),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        answers = [answer == "1" for answer in done.stdout.split()]
        if len(answers) < len(lines):  # the interpreter ended at the next one
            answers.append(False)
        yield from answers
        lines = lines[len(answers) :]


def _taken(folder: bytes, files: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, int, bytes]]:
    """What Python would take: its path, the Python that made it, the level of optimisation, and the module's path."""
    for above, stems in sorted(modules_by_folder(files).items()):
        kept = above + b"__pycache__/"
        try:
            found = sorted(os.listdir(folder + b"/" + kept))
        except OSError:
            continue
        for name in found:
            match = _NAME.fullmatch(name)
            if match and match[1] in stems:
                module = above + match[1] + b".py"
                if _believed(folder + b"/" + kept + name, folder + b"/" + module, match[2]):
                    yield kept + name, match[2], int(match[3] or 0), module


def _believed(file: bytes, module: bytes, tag: bytes) -> bool:
    try:
        with open(file, "rb") as source:
            head = source.read(16)
        status = os.stat(module)
        if len(head) < 16 or (tag == _OURS and head[:4] != importlib.util.MAGIC_NUMBER):
            return False
        flags = int.from_bytes(head[4:8], "little")
        if flags & _HASHED:
            if not flags & _COMPARED:
                return True
            with open(module, "rb") as source:
                return head[8:16] == importlib.util.source_hash(source.read())
        return head[8:16] == struct.pack("<II", int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    except OSError:
        return False


def _hex(folder: Path, path: bytes) -> str:
    return (os.fsencode(folder) + b"/" + path).hex()
