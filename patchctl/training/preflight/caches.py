"""Caches of compiled operators and graphs: where they lie, which are older than CANN, and how they are taken away.

After a change of CANN they are of another compiler (002). `.cache` and `/root/.cache` also hold downloads from Hugging Face and
ModelScope, which nobody wants to fetch again: only the folders below them that hold compiled code are looked at.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchctl.errors import WrongUse
from patchctl.language import joined, message

# Below the folder that training starts in. kernel_meta: operators; .torchair_cache: graphs of TorchAir.
BELOW_START = ("kernel_meta", ".torchair_cache", ".cache/torchair", ".cache/kernel_meta")
# Below the home folder. atc_data: operators (ASCEND_CACHE_PATH in CANN's list of variables); the rest are torch's and vllm's.
BELOW_HOME = (
    "atc_data",
    "kernel_meta",
    ".torchair_cache",
    ".cache/atc_data",
    ".cache/kernel_meta",
    ".cache/torchair",
    ".cache/torch_extensions",
    ".cache/torch/inductor",
    ".cache/vllm/torch_compile_cache",
)
# Folders that a variable names, and what lies below them. Never the folder itself: it may be anybody's.
BELOW_VARIABLES = (
    ("ASCEND_CACHE_PATH", "kernel_cache"),
    ("ACL_OP_COMPILER_CACHE_DIR", "kernel_cache"),
    ("VLLM_CACHE_ROOT", "torch_compile_cache"),
)
KEPT = ("huggingface", "modelscope", "pip", "patchctl")


@dataclass(frozen=True)
class Cache:
    """One cache: its folder, the bytes in it, and the newest and the oldest of its files, in seconds since 1970."""

    path: str
    bytes: int
    modified: float
    oldest: float


def find_caches(start: Sequence[Path], environment: Mapping[str, str]) -> list[Cache]:
    """What there is below the folders where training starts, the home folder, and the folders that variables name."""
    home = [Path(environment["HOME"])] if environment.get("HOME") else []
    places = [folder / name for folder in start for name in BELOW_START]
    places += [folder / name for folder in home for name in BELOW_HOME]
    places += [Path(environment[v]) / below for v, below in BELOW_VARIABLES if environment.get(v)]
    found: dict[str, Cache] = {}
    for place in places:
        if place.is_dir() and not place.is_symlink() and not _kept(place):
            real = str(place.resolve())
            found.setdefault(real, _measured(real))
    return [cache for cache in found.values() if cache.bytes]


def _kept(place: Path) -> bool:
    """Whether a folder is, or holds at its top, someone's downloads."""
    return place.name in KEPT or any((place / name).exists() for name in KEPT)


def _measured(folder: str) -> Cache:
    size, newest, oldest = 0, 0.0, math.inf
    for file in (os.path.join(root, name) for root, _, names in os.walk(folder) for name in names):
        try:
            found = os.lstat(file)
        except OSError:
            continue
        size, newest, oldest = size + found.st_size, max(newest, found.st_mtime), min(oldest, found.st_mtime)
    return Cache(folder, size, newest, oldest)


def caches_of(data: Any) -> list[Cache] | None:
    """The caches of a recording; None where the text is in no form of ours."""
    try:
        return [_cache_of(row) for row in data]
    except (TypeError, KeyError, ValueError, OverflowError, AttributeError):
        return None


def _cache_of(row: Mapping[str, Any]) -> Cache:
    """A row; recordings from before the oldest file was looked at have the newest alone."""
    modified = float(row["modified"])
    return Cache(str(row["path"]), int(row["bytes"]), modified, float(row.get("oldest", modified)))


def clear(caches: Sequence[Cache]) -> list[str]:
    """Takes the folders away and returns their paths. Raises WrongUse for one that cannot be; the others are gone then."""
    gone: list[str] = []
    for cache in caches:
        try:
            shutil.rmtree(cache.path)
        except OSError as error:
            what = message("{path} cannot be taken away: {error}", path=cache.path, error=error.strerror)
            before = joined(gone) or message("none")
            raise WrongUse(what, hint=message("taken away before it: {paths}", paths=before)) from None
        gone.append(cache.path)
    return gone
