"""Says whether a folder has all that verl.model_merger needs of an FSDP checkpoint: `python -m data.fsdp_shards DIR`.

verl writes one file a rank on the node of that rank; the merger needs them in one folder (003, 4.7), and ends in a traceback
for the first that is not there.
"""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from data.ending import Full, WrongUse, finish, gigabytes


def main() -> int:
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    world_size = world_size_of(folder)
    shards = [folder / f"model_world_size_{world_size}_rank_{rank}.pt" for rank in range(world_size)]
    missing = [rank for rank, path in enumerate(shards) if not path.is_file()]
    if missing:
        raise WrongUse(
            f"{len(missing)} of {world_size} shards are missing: ranks {ranges(missing)}",
            where=str(folder),
            hint="copy model_world_size_*_rank_*.pt of every node into this folder, e.g. with rsync",
        )
    cut = [rank for rank, path in enumerate(shards) if not zipfile.is_zipfile(path)]
    if cut:
        raise WrongUse(f"shards of ranks {ranges(cut)} are cut off", where=str(folder), hint="copy them again")
    if not (folder / "huggingface" / "config.json").is_file():
        hint = "rank 0 writes the folder huggingface/: copy it from the first node"
        raise WrongUse("no huggingface/config.json", where=str(folder), hint=hint)
    _require_room(target, sum(path.stat().st_size for path in shards))
    return 0


def world_size_of(folder: Path) -> int:
    """The number of ranks that wrote the checkpoint. Raises WrongUse."""
    path = folder / "fsdp_config.json"
    if not path.is_file():
        hint = "give the folder global_step_N/actor of the first node"
        raise WrongUse("no fsdp_config.json: no FSDP checkpoint of verl", where=str(folder), hint=hint)
    try:
        world_size = json.loads(path.read_text(encoding="utf-8"))["world_size"]
    except (ValueError, KeyError, TypeError):
        world_size = None
    if not isinstance(world_size, int) or world_size < 1:
        raise WrongUse("says no world_size", where=str(path))
    return world_size


def ranges(ranks: Iterable[int]) -> str:
    """0-3, 8: what is next to each other together, because a node's ranks are."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _require_room(target: Path, size: int) -> None:
    """The merged model is bf16: as large as the shards, or half of them where they are float32 (verl's default)."""
    existing = next(path for path in [target.absolute(), *target.absolute().parents] if path.exists())
    free = shutil.disk_usage(existing).free
    if size // 2 > free:
        raise Full(f"the merged model needs {gigabytes(size // 2)}, and {gigabytes(free)} are free", where=str(target))
    print(f"shards of {gigabytes(size)}: the merger holds all of them in memory", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(finish(main))
