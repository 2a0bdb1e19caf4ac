"""docs/evidence/recipes.md: what a run of tests/recipes/run.py found, a row a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patchctl.atomic import replace_file

HEAD = """\
# Recipes, run

Every shipped recipe, shrunk (`tests/recipes/sizes.yaml`), through verl's own entry module on CPUs: Ray workers, gloo, the
recipe's trainer and its engine, on the patched trees with the stand-ins of `standins/`. Written by `make test-recipes`.

- **composed**: the entry module took the overrides and started its task runner.
- **two steps**: generation, reward, reference, update and checkpoint, twice.
- **update seen**: after each update the engine holds the whole model, answers greedily, and with other tokens than before; the
  tokens are Hugging Face's with the same weights, or the engine's token is at most so many logits below the best (bf16).
- **resumed**: begun again from the checkpoint of the first step, the engine is given the very weights that it was given then.

| recipe | ranks | composed | two steps | update seen | resumed | seconds | where it stops |
|---|---|---|---|---|---|---|---|
"""

FOUND = """
## What these runs found at the seams

| with what | what happened | mended by |
|---|---|---|
| dense engines that sleep, vllm-ascend's default of VLLM_ASCEND_ENABLE_NZ | `FRACTAL_NZ mode is enabled` at the first generation | the variable in \
`shared/npu`, rule `weights-not-in-nz` |
| MindSpeed's swap_optimizer and verl's checkpoints | `out of bounds for storage of size 0` at the first checkpoint; read in the code and shown \
by the patch's test: a step after a load goes on with the old count of steps | patch \
[swap_optimizer_state](../patches/mindspeed/f6688c61/swap_optimizer_state.md) |
| ep_alltoallv_reshard and param_offload | `out of bounds for storage of size 0` when the workers are made | \
[ep_alltoallv_reshard](../patches/verl/v0.6.0/ep_alltoallv_reshard.md) records shapes only |
"""


def write_table(file: Path, results: Mapping[str, Mapping[str, Any]], titles: Sequence[str]) -> None:
    rows = [_row(title, results.get(title)) for title in titles]
    replace_file(file, (HEAD + "".join(rows) + FOUND).encode())


def _row(title: str, found: Mapping[str, Any] | None) -> str:
    if found is None:
        return f"| {title} | | not run | | | | | |\n"
    steps = "yes" if found["steps"] == 2 else f"no ({found['steps']})"
    other = ", ".join(f"{name} {value}" for name, value in found.get("other sizes", {}).items())
    cells = [
        title,
        f"{found.get('ranks', '')}{f' ({other})' if other else ''}",
        _yes(found["composed"]),
        steps,
        _update(found["update"]),
    ]
    cells += [_yes(found["resumed"]), str(found.get("seconds", "")), found["why"].replace("|", "\\|")]
    return f"| {' | '.join(cells)} |\n"


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _update(found: Mapping[str, Any] | None) -> str:
    if not found:
        return ""
    faults = [name for name in ("whole", "ranks agree", "changed") if not found[name]]
    if faults:
        return f"no ({', '.join(faults)})"
    return "yes" if found["as Hugging Face"] else f"yes, {found['behind']:.2g} below"
