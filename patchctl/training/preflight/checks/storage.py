"""The recipe's files and folders: there, of the right size, and with room for what is still to come."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from patchctl.findings import Finding, judged, looked_at
from patchctl.language import Translatable, joined, message
from patchctl.terminal.progress import size_text
from patchctl.training.models import Model
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.memory import BF16, bytes_of_checkpoint, trains_adapters
from patchctl.training.recipes.totals import totals_of

CHECKPOINTS, MODEL, MEGATRON_WEIGHTS = "checkpoints", "model", "mcore_weights"
_ACTOR = "actor_rollout_ref.actor"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# A folder with this share of what is published has all of it: tokenizers and headers make up for the difference.
_WHOLE = 0.98
_KINDS = {"file": message("file"), "folder": message("folder")}
_MOST_VALIDATION = 2  # a third of all answers is much for a curve


def check_storage(case: Case) -> Iterator[Finding]:
    """Every path of the recipe; then the weights, and room for checkpoints."""
    for name in case.run.paths:
        if name != CHECKPOINTS:
            yield _path(case, name)
    yield from _weights(case)
    if CHECKPOINTS in case.run.paths:
        yield _checkpoints(case)
    yield from _validation(case)


def _path(case: Case, name: str) -> Finding:
    parameter = case.run.paths[name]
    path = case.path(name)
    todo = message(
        "--path {name}=PATH, or {variable}=PATH: {what}",
        name=name,
        variable=parameter.variable,
        what=" ".join(parameter.what.split()),
    )
    if path is None:
        return looked_at("storage", name, "unknown", message("not given"), todo, needed=False)
    there = case.there(path)
    if there is None:
        what = message("{path}: nobody looked", path=path)
        again = message("record again with this recipe and path")
        return looked_at("storage", name, "unknown", what, again, needed=False)
    if not there:
        if name == MODEL and _HUB_NAME.fullmatch(path):
            what = message(
                "{path} is no folder here: taken for a name on a hub, and every node fetches it by itself", path=path
            )
            return looked_at("storage", name, "warning", what, message("fetch it once, and {todo}", todo=todo))
        return looked_at("storage", name, "error", message("{path}: nothing is there", path=path), todo)
    kind = _KINDS.get(there["kind"], there["kind"])
    what = message("{path}: a {kind}, {size}", path=path, kind=kind, size=size_text(there["bytes"]))
    return looked_at("storage", name, "ok", what)


def _weights(case: Case) -> Iterator[Finding]:
    """The weights that this recipe loads, or room for them."""
    model = case.model
    if not isinstance(model, Model) or case.off(f"{_ACTOR}.load_weight"):
        return  # with random weights config and tokenizer are enough
    converted = case.on(f"{_ACTOR}.megatron.use_dist_checkpointing")
    size = model.parameters * BF16
    name = MEGATRON_WEIGHTS if converted and MEGATRON_WEIGHTS in case.run.paths else MODEL
    kind = "converted weights" if name == MEGATRON_WEIGHTS else "weights"
    path, there = _found(case, name)
    if there:
        found, bf16 = size_text(there["bytes"]), size_text(size)
        if _is_whole(there, size):
            what = message("{found} in {path}; {size} in bf16", found=found, path=path, size=bf16)
            yield looked_at("storage", kind, "ok", what)
            return
        what = message("{found} in {path}, and {size} are wanted in bf16", found=found, path=path, size=bf16)
        again = message("convert again")
        if name == MODEL:
            again = message("fetch the rest (a download that was cut off goes on)")
        todo = message("{again}, or a recipe with random weights", again=again)
        yield looked_at("storage", kind, "error", what, todo)
        return
    total, parts = _wanted(case, size, converted)
    mount, what = _placed(case, parts, path)
    if mount is None:
        yield looked_at("storage", f"room for {kind}", "unknown", what, needed=False)
    elif mount.free < total:
        yield looked_at("storage", f"room for {kind}", "error", what, message("another disk, or make room"))
    else:
        yield looked_at("storage", f"room for {kind}", "ok", what)


def _found(case: Case, name: str) -> tuple[str | None, Mapping[str, Any] | None]:
    """A path of the recipe, where it has one of this name, and what lies there."""
    path = case.path(name) if name in case.run.paths else None
    return path, case.there(path) if path else None


def _is_whole(there: Mapping[str, Any] | None, size: int) -> bool:
    return there is not None and there.get("kind") == "folder" and there["bytes"] >= _WHOLE * size


def _wanted(case: Case, size: int, converted: bool) -> tuple[int, str]:
    """How many bytes are still to come, and what they are: not what lies there already in bf16."""
    download = int(case.published[1].bytes) if case.published and case.published[1].bytes.isdigit() else size
    total, parts = 0, list[str]()
    if not _is_whole(_found(case, MODEL)[1], size):
        total, parts = download, [message("{size} to fetch", size=size_text(download))]
        if download < _WHOLE * size:  # published in fp8
            total, parts = total + size, [*parts, message("{size} as bf16", size=size_text(size))]
    if converted:
        total, parts = total + size, [*parts, message("{size} as Megatron's checkpoint", size=size_text(size))]
    return total, joined(parts, " and ")


def _checkpoints(case: Case) -> Finding:
    """Weights and optimizer, as often as checkpoints are kept: all that the run writes, where nothing says how many."""
    name, model, path = "room for checkpoints", case.model, case.path(CHECKPOINTS)
    every = case.number("trainer.save_freq")
    if every is not None and every <= 0:
        return looked_at("storage", name, "ok", message("none are written (trainer.save_freq)"))
    todo = message(
        "--path {name}=DIR, or {variable}=DIR, on a disk that all nodes see",
        name=CHECKPOINTS,
        variable=case.run.paths[CHECKPOINTS].variable,
    )
    if not isinstance(model, Model):
        return looked_at("storage", name, "unknown", message("the model is not known"), todo, needed=False)
    one = bytes_of_checkpoint(model, case.facts)
    totals = totals_of(case.run, case.all_rules, one)
    limited = case.number("trainer.max_actor_ckpt_to_keep")
    total = totals.kept_bytes or one
    # From 0.9 on verl takes the only one away when the next is whole.
    both = limited == 1 and totals.written != 1 and case.is_of("verl", ">=0.9")
    total += one if both else 0
    if both:
        kept = message("one is kept until the next is written")
    elif totals.kept is None:
        kept = message("all are kept")
    elif limited:
        kept = message("{count} are kept", count=totals.kept)
    else:
        kept = message("all {count} are kept", count=totals.kept)
    what = message("{size} each with the optimizer, {kept}", size=size_text(one), kept=kept)
    if trains_adapters(case.facts):
        what = message("{size} each with the optimizer of the adapters, {kept}", size=size_text(one), kept=kept)
    if totals.kept:
        what = message("{what}: {more}", what=what, more=size_text(total))
    mount, what = _placed(case, what, path)
    if mount is None:
        return looked_at("storage", name, "unknown", what, todo if path is None else None, needed=False)
    if mount.free < total:
        keep = message("a larger trainer.save_freq, or another disk")
        if not limited or limited > 2:
            keep = message("trainer.max_actor_ckpt_to_keep=2, a larger trainer.save_freq, or another disk")
        return looked_at("storage", name, "error", what, keep)
    todo = message("trainer.max_actor_ckpt_to_keep=N keeps the last N")
    return judged("storage", name, "ok" if limited else "warning", what, todo)


def _validation(case: Case) -> Iterator[Finding]:
    """The answers that are generated to validate, against those that train."""
    totals = totals_of(case.run, case.all_rules)
    if not totals.validated or not totals.trained:
        return
    what = message(
        "{times} times, {validated} answers, and {trained} to train",
        times=totals.validations,
        validated=f"{totals.validated:,}",
        trained=f"{totals.trained:,}",
    )
    many = totals.validated * _MOST_VALIDATION > totals.trained
    todo = message("a larger trainer.test_freq, or fewer rows (--size validation_rows=N says how many there are)")
    yield judged("storage", "validation answers", "warning" if many else "ok", what, todo)


def _placed(case: Case, what: str, path: str | None) -> tuple[m.Mount | None, Translatable]:
    """The file system that a path lies on, or will; and what needs room, with how much is free there or why that is not known."""
    if path is None:
        return None, message("{what}; where is not given", what=what)
    if not path.startswith("/"):
        return None, joined([what, message("{path} is relative: give it absolute", path=path)], "; ")
    text = case.machine.text(m.DISKS)
    if text is None:
        return None, joined([what, case.machine.why_not(m.DISKS)], "; ")
    real = (case.there(path) or {}).get("real", path)
    mount = m.mount_of(posixpath.normpath(str(real)), m.mounts(text))
    if mount is None:
        return None, joined([what, message("df names no file system for {path}", path=path)], "; ")
    free = size_text(mount.free)
    return mount, message("{what}; {free} are free on {point}", what=what, free=free, point=mount.point)
