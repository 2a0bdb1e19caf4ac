"""Folders of weights made without torch, for tests that are about files and not about what they hold."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any


def safetensors_file(path: Path, tensors: dict[str, int], *, sparse: bool = False) -> None:
    """A file in safetensors' format with tensors of so many bytes: random ones, or a hole that takes no disk."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + (b"" if sparse else os.urandom(end)))
    os.truncate(path, 8 + len(text) + end)


def small_model(folder: Path, architecture: str) -> Path:
    """A whole model of one tensor, as far as anyone can tell who does not load it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / "tokenizer.json").write_text("{}")
    safetensors_file(folder / "model.safetensors", {"model.norm.weight": 64})
    return folder
