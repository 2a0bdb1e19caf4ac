"""Stand-ins that are made at run time, in a folder for the path: metadata of distributions that are not installed.

vllm and vllm-ascend are read from their trees, so no installer has written their `*.dist-info`. vllm chooses its
platform by the version found there and by entry points; vllm-ascend reads `_build_info.py`, which its build writes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Trees(Protocol):
    """What is asked of the trees on the path."""

    def path(self, name: str) -> Path:
        """The folder of an upstream's tree."""

    def version(self, upstream: str) -> str:
        """The version that the package index has it by."""

    def generated(self, upstream: str, path: str) -> str:
        """The content of a file that its build writes."""


# Python imports `sitecustomize` at start from any folder of PYTHONPATH. The finder answers for this one name only, and
# only after the tree's own file was not found.
BUILD_INFO_SITE = '''\
"""Stands for vllm_ascend/_build_info.py, which vllm-ascend's build writes, when the tree has none."""
import importlib.abc
import importlib.util
import pathlib
import sys


class _BuildInfo(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "vllm_ascend._build_info":
            return None
        return importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name("vllm_ascend_build_info.py"))


sys.meta_path.append(_BuildInfo())
'''


def entry_points(setup: Path) -> str:
    """What `entry_points` of a setup.py names, as an installer writes it; the call must give it as a plain dictionary."""
    for call in ast.walk(ast.parse(setup.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call):
            for keyword in call.keywords:
                if keyword.arg == "entry_points":
                    groups = ast.literal_eval(keyword.value)
                    return "\n".join(f"[{name}]\n" + "".join(f"{one}\n" for one in groups[name]) for name in groups)
    raise LookupError(f"{setup} gives no entry_points")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _metadata(folder: Path, name: str, version: str) -> Path:
    info = folder / f"{name}-{version}.dist-info"
    _write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return info


def vllm_cpu(folder: Path, trees: Trees) -> Path:
    """Metadata of a CPU build of vllm: `+cpu` in the version makes vllm choose its CpuPlatform."""
    _metadata(folder, "vllm", f"{trees.version('vllm')}+cpu")
    return folder


def vllm_ascend(folder: Path, trees: Trees) -> Path:
    """Metadata of vllm-ascend: its entry point makes vllm choose NPUPlatform. Adds `_build_info` where it is absent."""
    tree = trees.path("vllm-ascend")
    info = _metadata(folder, "vllm_ascend", trees.version("vllm-ascend"))
    _write(info / "entry_points.txt", entry_points(tree / "setup.py"))
    if not (tree / "vllm_ascend" / "_build_info.py").exists():
        _write(folder / "vllm_ascend_build_info.py", trees.generated("vllm-ascend", "vllm_ascend/_build_info.py"))
        _write(folder / "sitecustomize.py", BUILD_INFO_SITE)
    return folder


MADE: dict[str, Callable[[Path, Trees], Path]] = {
    "vllm-cpu-dist-info": vllm_cpu,
    "vllm-ascend-dist-info": vllm_ascend,
}
