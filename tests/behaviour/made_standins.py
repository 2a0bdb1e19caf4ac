"""Stand-ins that are made at run time, in pytest's temporary folder: metadata of distributions that are not installed.

vllm and vllm-ascend are read from their trees, so no installer has written their `*.dist-info`. vllm chooses its
platform by the version found there and by entry points; vllm-ascend reads `_build_info.py`, which its build writes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trees import Trees

# From vllm-ascend's setup.py (entry_points) at v0.14.0rc1.
ASCEND_ENTRY_POINTS = """\
[vllm.platform_plugins]
ascend = vllm_ascend:register

[vllm.general_plugins]
ascend_kv_connector = vllm_ascend:register_connector
ascend_model_loader = vllm_ascend:register_model_loader
ascend_service_profiling = vllm_ascend:register_service_profiling
"""

# Python imports `sitecustomize` at start from any folder of PYTHONPATH. The finder answers for this one name only, and
# only after the tree's own file was not found.
BUILD_INFO_SITE = '''\
"""Stands for vllm_ascend/_build_info.py, which vllm-ascend's build writes, when the tree has none (device type A3)."""
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


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _metadata(folder: Path, name: str, version: str) -> Path:
    info = folder / f"{name}-{version}.dist-info"
    _write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return info


def vllm_cpu(folder: Path, trees: Trees) -> Path:
    """Metadata of a CPU build of vllm: `+cpu` in the version makes vllm choose its CpuPlatform."""
    _metadata(folder, "vllm", "0.14.1+cpu")
    return folder


def vllm_ascend(folder: Path, trees: Trees) -> Path:
    """Metadata of vllm-ascend: its entry point makes vllm choose NPUPlatform. Adds `_build_info` where it is absent."""
    _write(_metadata(folder, "vllm_ascend", "0.14.0rc1") / "entry_points.txt", ASCEND_ENTRY_POINTS)
    if not (trees.path("vllm-ascend") / "vllm_ascend" / "_build_info.py").exists():
        _write(folder / "vllm_ascend_build_info.py", "__device_type__ = 'A3'\n")
        _write(folder / "sitecustomize.py", BUILD_INFO_SITE)
    return folder


MADE: dict[str, Callable[[Path, Trees], Path]] = {
    "vllm-cpu-dist-info": vllm_cpu,
    "vllm-ascend-dist-info": vllm_ascend,
}
