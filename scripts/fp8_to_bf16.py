#!/usr/bin/env python3
"""Make bf16 weights of DeepSeek's published fp8 weights, as training needs them: on a CPU, one file at a time.

Each fp8 matrix is multiplied by its scales (NAME_scale_inv, one a block of 128 x 128, in float32) and rounded to bf16. The
layers for multi-token prediction are left out, config.json loses quantization_config and says num_nextn_predict_layers 0,
without which verl v0.6.0 refuses it. Everything else in the folder (tokenizer, code) is copied.

For DeepSeek-R1: 14 GB of memory (a file as read, and as written), 1,342 GB of disk. A run that was stopped goes on with the files
that are missing; each is written under another name first.

example:
  fp8_to_bf16.py models/DeepSeek-R1 models/DeepSeek-R1-bf16
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.checkpoint import INDEX, SINGLE, Damaged, Tensor, read_config, read_header, weight_map
from data.ending import Full, WrongUse, finish, gigabytes

SCALE = "_scale_inv"
FP8 = "F8_E4M3"
BF16_BYTES = 2
# Remembers what is converted while the conversion is under way, so that another model is not mixed into it.
STARTED = "fp8_to_bf16.json"
LAYER = re.compile(r"^model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Plan:
    """What there is to do: for each file to write, the tensors that it will hold."""

    source: Path
    config: dict[str, Any]
    block: tuple[int, int]
    holders: dict[str, str]
    files: dict[str, dict[str, Tensor]]
    dropped: int

    @property
    def size(self) -> int:
        return sum(tensor.size for tensors in self.files.values() for tensor in tensors.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="FP8_DIR", help="the model as published")
    parser.add_argument(
        "target", type=Path, metavar="BF16_DIR", help="a folder that is new, or of a run that was stopped"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    args = parser.parse_args()
    plan = make_plan(args.source)
    if (args.target / INDEX).exists():
        raise WrongUse("holds a model already", where=str(args.target), hint="another folder")
    missing = [name for name in plan.files if not is_done(args.target / name, plan.files[name])]
    _say(
        f"{len(plan.files)} files, {gigabytes(plan.size)}, to {args.target}; {plan.dropped} tensors of MTP are left out"
    )
    if args.dry_run:
        return 0
    _require_room(args.target, sum(tensor.size for name in missing for tensor in plan.files[name].values()))
    _begin(args.target, plan)
    for count, name in enumerate(missing, 1):
        convert_file(plan, name, args.target)
        _say(f"[{count}/{len(missing)}] {name}")
    finish_folder(plan, args.target)
    print(args.target)
    return 0


def make_plan(source: Path) -> Plan:
    """Reads configuration and headers; raises WrongUse for a folder that is incomplete or not in DeepSeek's fp8."""
    config = read_config(source)
    quantization = config.get("quantization_config") or {}
    block = tuple(quantization.get("weight_block_size") or ())
    if quantization.get("quant_method") != "fp8" or len(block) != 2:
        raise WrongUse("its quantization_config is not fp8 in blocks", where=str(source / "config.json"))
    holders = weight_map(source)
    headers = {file: _header(source / file) for file in sorted(set(holders.values()))}
    layers = int(config["num_hidden_layers"])
    files: dict[str, dict[str, Tensor]] = {file: {} for file in headers}
    dropped = 0
    for name, file in holders.items():
        if name not in headers[file]:
            raise Damaged(f"lacks {name}, which the index says it has", where=str(source / file))
        if _layer(name) >= layers:
            dropped += 1
        elif not name.endswith(SCALE):
            files[file][name] = _converted(name, headers[file][name], holders, headers, block)
    kept = {file: tensors for file, tensors in files.items() if tensors}
    return Plan(source, config, (int(block[0]), int(block[1])), holders, kept, dropped)


def _header(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WrongUse("missing", where=str(path), hint=f"weights.py check {path.parent} names all that is")
    return read_header(path)


def _layer(name: str) -> int:
    found = LAYER.match(name)
    return int(found.group(1)) if found else -1


def _converted(
    name: str, tensor: Tensor, holders: dict[str, str], headers: dict[str, dict[str, Tensor]], block: tuple[int, ...]
) -> Tensor:
    """What becomes of one tensor; raises WrongUse where an fp8 matrix has no scales that fit it."""
    if tensor.dtype != FP8:
        return tensor
    holder = holders.get(name + SCALE)
    scales = headers[holder].get(name + SCALE) if holder else None
    blocks = tuple(math.ceil(size / side) for size, side in zip(tensor.shape, block, strict=False))
    if len(tensor.shape) != 2 or scales is None or scales.shape != blocks:
        shape = scales.shape if scales else "none"
        raise WrongUse(f"{name}: {tensor.shape} in fp8 needs scales of {blocks}, and has {shape}")
    return Tensor("BF16", tensor.shape, math.prod(tensor.shape) * BF16_BYTES)


def is_done(path: Path, wanted: dict[str, Tensor]) -> bool:
    """Whether a file of an earlier run holds what this one would write."""
    try:
        return path.is_file() and read_header(path) == wanted
    except Damaged:
        return False


def convert_file(plan: Plan, name: str, target: Path) -> None:
    """Writes one output file. Only its tensors are in memory; those of the source are mapped, not read."""
    from safetensors.torch import save_file

    with Source(plan) as source:
        tensors = {tensor: source.converted(tensor) for tensor in plan.files[name]}
        partial = target / f".{name}.partial"
        try:
            save_file(tensors, partial, metadata={"format": "pt"})
            # safetensors makes files that their owner alone can read; other nodes may come as someone else.
            partial.chmod(0o666 & ~_umask())
            os.replace(partial, target / name)
        finally:
            partial.unlink(missing_ok=True)


class Source:
    """The files of the source, opened when a tensor of theirs is asked for."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stack = ExitStack()
        self._open: dict[str, Any] = {}

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def converted(self, name: str) -> Any:
        """The tensor in the type that it is written in."""
        tensor = self._read(name)
        if self._plan.holders.get(name + SCALE) is None:
            return tensor
        return dequantized(tensor, self._read(name + SCALE), self._plan.block)

    def _read(self, name: str) -> Any:
        from safetensors import safe_open

        file = self._plan.holders[name]
        if file not in self._open:
            self._open[file] = self._stack.enter_context(safe_open(self._plan.source / file, framework="pt"))
        return self._open[file].get_tensor(name)


def dequantized(weight: Any, scales: Any, block: tuple[int, int]) -> Any:
    """`weight` times its block's scale, computed in float32 and rounded once, to bf16.

    Row by row of blocks, so that no float32 copy of a whole matrix is made.
    """
    import torch

    result = torch.empty(weight.shape, dtype=torch.bfloat16)
    columns = scales.float().repeat_interleave(block[1], dim=1)[:, : weight.shape[1]]
    for row in range(scales.shape[0]):
        rows = slice(row * block[0], (row + 1) * block[0])
        result[rows] = weight[rows].float() * columns[row]
    return result


def finish_folder(plan: Plan, target: Path) -> None:
    """Copies what is no weight, writes config.json, and last the index, which makes the folder a model."""
    for path in _others(plan.source):
        if not (target / path.name).exists():
            shutil.copy2(path, target / path.name)
    config = {key: value for key, value in plan.config.items() if key != "quantization_config"}
    _write_json(target / "config.json", config | {"num_nextn_predict_layers": 0, "torch_dtype": "bfloat16"})
    index = {
        "metadata": {"total_size": plan.size},
        "weight_map": {name: file for file, tensors in plan.files.items() for name in tensors},
    }
    _write_json(target / INDEX, index)
    (target / STARTED).unlink(missing_ok=True)


def _others(source: Path) -> Iterator[Path]:
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix != ".safetensors" and path.name not in (INDEX, SINGLE, "config.json"):
            yield path


def _begin(target: Path, plan: Plan) -> None:
    """Marks the folder as under way; raises WrongUse for one that holds something else."""
    identity = json.dumps([plan.config, plan.holders], sort_keys=True)
    mark = {"of": str(plan.source.resolve()), "sha256": hashlib.sha256(identity.encode()).hexdigest()}
    started = target / STARTED
    if started.is_file():
        before = json.loads(started.read_text(encoding="utf-8"))
        if before.get("sha256") != mark["sha256"]:
            raise WrongUse(f"was begun for {before.get('of')}", where=str(target), hint="another folder, or remove it")
    elif target.is_dir() and any(target.iterdir()):
        raise WrongUse("is not empty, and not from a run of this script", where=str(target), hint="another folder")
    target.mkdir(parents=True, exist_ok=True)
    _write_json(started, mark)


def _require_room(target: Path, size: int) -> None:
    existing = next(path for path in [target.absolute(), *target.absolute().parents] if path.exists())
    free = shutil.disk_usage(existing).free
    if size > free:
        hint = "another disk; what was converted is kept"
        raise Full(f"{gigabytes(size)} are to be written, and {gigabytes(free)} are free", where=str(target), hint=hint)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_json(path: Path, value: Any) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(finish(main))
