"""Weights, KV cache and activations against a device's memory, and how many sequences fit at once."""

from __future__ import annotations

from collections.abc import Iterator

from patchctl.findings.report import Finding, looked_at
from patchctl.terminal.progress import size_text
from patchctl.training.models.parameters import Model, UnknownModel, context_length
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.checks.host import host_memory
from patchctl.training.preflight.memory import Engine, engine_weights, kv_bytes, prefill_bytes, sequences_that_fit
from patchctl.training.preflight.sizes import (
    ROLLOUT,
    BadSizes,
    Training,
    engine_of,
    longest,
    moving_buffers,
    prefill_tokens,
    sequences_of_a_rank,
    training_of,
    utilisation,
)

LEFT_BY_ROLLOUT = 9 << 30  # 8 to 9 GB for 235B: linked from 002
_AREA = "device memory"


def check_device_memory(case: Case) -> Iterator[Finding]:
    """The rollout, then the update. Without npu-smi the figures are told all the same."""
    model = case.model
    if not isinstance(model, Model):
        why = str(model) if isinstance(model, UnknownModel) else "no config.json, and none in manifests/models.yaml"
        yield looked_at(_AREA, "model", "unknown", why, "--path model=DIR with its config.json", needed=False)
        return
    yield looked_at(_AREA, "model", "ok", f"{model.parameters:,} parameters ({case.model_source})")
    yield from _length(case)
    total = min((d.total for d in case.smi.devices), default=None) if case.smi else None
    try:
        yield from _rollout(case, model, engine_of(case, model), total)
        yield from _training(case, training_of(case, model))
    except BadSizes as error:
        todo = "sizes that divide: --size, or the recipe's overrides"
        yield looked_at(_AREA, "parallel sizes", "error", f"cannot be: {error}", todo)


def _length(case: Case) -> Iterator[Finding]:
    """verl asserts it when the engine is made, after the training's weights were loaded (vllm_rollout_spmd.py)."""
    most, wanted = context_length(case.model_config or {}), case.sequence
    name, where = "length", f"max_position_embeddings ({case.model_source})"
    if most is None or not wanted:
        return
    what = f"{wanted:,} tokens of prompt and response; the model takes {most:,}, {where}"
    if wanted > most:
        todo = "another model, as Qwen3-235B-A22B-Thinking-2507 with 262,144: --path model=DIR; or shorter sequences"
        yield looked_at(_AREA, name, "error", f"{what}: verl refuses it", todo)
    else:
        yield looked_at(_AREA, name, "ok", what)


def _rollout(case: Case, model: Model, engine: Engine, total: int | None) -> Iterator[Finding]:
    parts = engine_weights(model, engine)
    weights = sum(parts.values())
    listed = ", ".join(f"{part} {size_text(size)}" for part, size in sorted(parts.items(), key=lambda p: -p[1])[:5])
    what = f"{size_text(weights)} a device at {_sizes(engine)} ({listed})"
    if total is None:
        yield _unknown("rollout weights", what)
        yield _unknown("sequences at once", f"KV cache: {size_text(kv_bytes(model, engine.tensor))} a token")
        return
    share = utilisation(case)
    taken, free = int(total * share), _free(case)
    if free is not None and taken > free:
        what_it_takes = f"{float(share):g} x {size_text(total)} are {size_text(taken)}, and {size_text(free)} are free"
        todo = f"{ROLLOUT}.gpu_memory_utilization={int(100 * free / total) / 100:g}, or end what else is on the devices"
        yield looked_at(_AREA, "gpu_memory_utilization", "error", f"{what_it_takes}: the engine does not start", todo)
    if weights >= taken:
        todo = "a larger rollout tensor parallel, data parallel or expert parallel size"
        yield looked_at(_AREA, "rollout weights", "error", f"{what}, and the engine has {size_text(taken)}", todo)
        return
    yield looked_at(_AREA, "rollout weights", "ok", f"{what}, of {float(share):g} x {size_text(total)}")
    if not longest(case):
        yield looked_at(_AREA, "sequences at once", "unknown", "how long sequences are is not said", needed=False)
        return
    tokens, chunk = prefill_tokens(case)
    working = prefill_bytes(model, engine, tokens, chunk) + moving_buffers(case)
    yield _sequences(case, model, engine, taken - weights - working, working)


def _sequences(case: Case, model: Model, engine: Engine, budget: int, working: int) -> Finding:
    """The largest max_num_seqs by the longest sequence and by the mean one."""
    length, (asked, allowed) = longest(case), _at_once(case, engine)
    most = sequences_that_fit(budget, model, engine.tensor, length)
    each = size_text(length * kv_bytes(model, engine.tensor))
    what = f"{size_text(max(0, budget))} for the KV cache after at least {size_text(working)} to work in; {most} of {length:,} tokens ({each} each)"
    todo = f"{ROLLOUT}.max_num_seqs={most}"
    if most < 1:
        less = "shorter sequences, a larger rollout tensor parallel size, or a larger gpu_memory_utilization"
        return looked_at(_AREA, "sequences at once", "error", f"{what}: the engine does not start", less)
    mean = min(case.mean_tokens, length)
    by_mean = sequences_that_fit(budget, model, engine.tensor, mean)
    if mean < length:
        what += f", {by_mean} of {mean:,} on average"
    if asked <= most:
        return looked_at(_AREA, "sequences at once", "ok", f"{what}; {allowed}")
    if asked <= by_mean:
        return looked_at(_AREA, "sequences at once", "ok", f"{what}; {allowed}, which fit as long as few are long")
    what += f"; {allowed}: the engine puts requests back and computes them again while more than fit are long"
    ran = "256 ran for 235B where 30 to 40 fit, because sequences end early (linked from 002)"
    todo = f"{todo} holds whatever comes, {by_mean} on average; {ran}"
    return looked_at(_AREA, "sequences at once", "warning", what, todo, needed=False)


def _at_once(case: Case, engine: Engine) -> tuple[int, str]:
    """How many sequences a rank has at once: no more than max_num_seqs, nor than it is given."""
    most, given = case.number(f"{ROLLOUT}.max_num_seqs") or 0, sequences_of_a_rank(case, engine)
    if given is None or most <= given:
        return most, f"max_num_seqs is {most}"
    return given, f"max_num_seqs is {most}, and a rank is given {given}"


def _training(case: Case, training: Training) -> Iterator[Finding]:
    what = (
        f"weights {size_text(training.weights)}, gradients {size_text(training.gradients)}, optimizer"
        f" {size_text(training.optimizer)}, activations {size_text(training.activations)} ({training.how})"
    )
    if training.buffers:
        what += f", {size_text(training.buffers)} for messages of hybrid data parallelism"
    if training.uneven:
        what += f", {size_text(training.uneven)} more while one device gets all tokens of a layer"
    todo = "larger tensor, pipeline, context or expert parallel sizes, recomputation, or swap_optimizer"
    yield _update(case, what, todo, training)
    yield _on_the_host(case, training.elsewhere * case.devices_per_node)


def _on_the_host(case: Case, kept: int) -> Finding:
    name, (has, of) = "states on the host", host_memory(case)
    said = f"{size_text(kept)} a node for weights, reference and optimizer while they are off the devices"
    if has is None:
        return looked_at(_AREA, name, "unknown", f"{said}; {of}", "look whether the machine has as much")
    said += f"; {of} is {size_text(has)}"
    if kept > has:
        return looked_at(_AREA, name, "error", said, "more nodes, or a larger limit of the container")
    return looked_at(_AREA, name, "ok", said)


def _free(case: Case) -> int | None:
    """What an idle device has free: what is in use then is the driver's, and stays so."""
    return min((d.total - d.used for d in case.smi.devices), default=None) if case.smi else None


def _update(case: Case, what: str, todo: str, training: Training) -> Finding:
    free, left_by_rollout = _free(case), LEFT_BY_ROLLOUT
    if case.smi is None or free is None:
        return _unknown("update", what)
    if case.off(f"{ROLLOUT}.free_cache_engine"):
        engine = int(min(d.total for d in case.smi.devices) * utilisation(case))
        free, left_by_rollout = max(0, free - engine), 0
        what += f"; the engine keeps {size_text(engine)} of it (free_cache_engine is off)"
        todo = f"{ROLLOUT}.free_cache_engine=True, or {todo}"
    if training.states > free:
        return looked_at(
            _AREA,
            "update",
            "error",
            f"{what}: more than the {size_text(free)} that are free, without activations",
            todo,
        )
    left = f"{size_text(training.total)} of {size_text(free)} that are free"
    if training.total + left_by_rollout > free:
        said = f"{what}: {left}"
        if left_by_rollout:
            said += ", and the rollout leaves 8 to 9 GB behind (linked from 002)"
        return looked_at(_AREA, "update", "warning", said, todo, needed=False)
    return looked_at(_AREA, "update", "ok", f"{what}: {left}")


def _unknown(name: str, what: str) -> Finding:
    todo = "look on the machine itself, or at a recording of it"
    return looked_at(_AREA, name, "unknown", f"{what}; the device's memory is not known", todo, needed=False)


def _sizes(engine: Engine) -> str:
    spread = f", experts over {engine.devices}" if engine.spread_experts else ""
    return f"tensor parallel {engine.tensor}, data parallel {engine.data}{spread}"
