"""A folder of weights as Hugging Face has them: what its safetensors files hold, read from their headers alone.

A header is 8 bytes (its length, little endian), then JSON: {name: {dtype, shape, data_offsets}}; the tensors follow
(https://huggingface.co/docs/safetensors). So a file that was cut off is known without reading its gigabytes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.ending import WrongUse

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LARGEST_HEADER = 100_000_000  # what the library itself accepts


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file; `size` is in bytes, `dtype` as safetensors writes it (BF16, F32, F8_E4M3)."""

    dtype: str
    shape: tuple[int, ...]
    size: int


class Damaged(WrongUse):
    """A file that is not whole, or no safetensors file."""


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises Damaged when the file is not as long as its header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(LARGEST_HEADER, size - 8):
            raise Damaged(f"no safetensors file, or one that was cut off at {size:,} bytes", where=str(path))
        try:
            header = json.loads(file.read(length))
            tensors = {name: _tensor(entry) for name, entry in header.items() if name != "__metadata__"}
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Damaged("its header is no list of tensors", where=str(path)) from None
    if size != 8 + length + end:
        raise Damaged(f"{size:,} bytes, and its header says {8 + length + end:,}", where=str(path))
    return tensors


def _tensor(entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    return Tensor(str(entry["dtype"]), tuple(entry["shape"]), end - begin)


def weight_map(folder: Path) -> dict[str, str]:
    """Which file of the folder holds each tensor: from the index, or from the one file that has none."""
    index = folder / INDEX
    if index.is_file():
        try:
            mapping = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {str(name): str(file) for name, file in mapping.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Damaged("no index of safetensors files", where=str(index)) from None
    if (folder / SINGLE).is_file():
        return dict.fromkeys(read_header(folder / SINGLE), SINGLE)
    raise WrongUse(f"has neither {INDEX} nor {SINGLE}", where=str(folder), hint="weights.py check says what it has")


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder. Raises WrongUse."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WrongUse("no config.json", where=str(folder), hint="is it a model's folder?") from None
    except ValueError as error:
        raise WrongUse(f"no JSON: {error}", where=str(path)) from None
    if not isinstance(config, dict):
        raise WrongUse("not an object", where=str(path))
    return config


def faults(folder: Path, *, config_only: bool = False) -> list[str]:
    """What keeps a folder from being a whole model, each with its file; empty when nothing does."""
    found: list[str] = []
    try:
        read_config(folder)
    except WrongUse as error:
        found.append(str(error))
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        found.append(f"{folder}: no tokenizer.json, tokenizer.model or vocab.json")
    if not config_only:
        found += _weight_faults(folder)
    found += [f"{path}: a download that was not finished" for path in sorted(folder.rglob("*.incomplete"))]
    return found


def _weight_faults(folder: Path) -> list[str]:
    try:
        mapping = weight_map(folder)
    except WrongUse as error:
        return [str(error)]
    if not mapping:
        return [f"{folder / (INDEX if (folder / INDEX).is_file() else SINGLE)}: lists no tensor"]
    found: list[str] = []
    for file in sorted(set(mapping.values())):
        expected = {name for name, holder in mapping.items() if holder == file}
        found += _file_faults(folder / file, expected)
    return found


def _file_faults(path: Path, expected: set[str]) -> list[str]:
    if not path.is_file():
        return [f"{path}: missing, with {len(expected):,} tensors"]
    try:
        lost = expected - set(read_header(path))
    except Damaged as error:
        return [str(error)]
    return [f"{path}: lacks {len(lost):,} tensors that the index says it has, {min(lost)} among them"] if lost else []
