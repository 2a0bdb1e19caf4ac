"""Weights, KV cache and activations against a device's memory, and how many sequences fit at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patchctl.findings import Finding, judged, looked_at
from patchctl.language import Translatable, joined, message
from patchctl.terminal.progress import size_text
from patchctl.training.models import Model, UnknownModel, context_length
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.checks.host import host_memory
from patchctl.training.preflight.memory import (
    BF16,
    Engine,
    engine_weights,
    kv_bytes,
    prefill_bytes,
    sequences_that_fit,
)
from patchctl.training.preflight.sizes import (
    CHUNK,
    ROLLOUT,
    BadSizes,
    Training,
    engine_of,
    longest,
    moving_buffers,
    sequences_of_a_rank,
    training_of,
    utilisation,
)

LEFT_BY_ROLLOUT = 9 << 30  # 8 to 9 GB for 235B: linked from 002
_AREA = "device memory"
_PARTS = {
    "head": message("head"),
    "output": message("output"),
    "experts": message("experts"),
    "shared experts": message("shared experts"),
}


def check_device_memory(case: Case) -> Iterator[Finding]:
    """The rollout, then the update. Without npu-smi the figures are told all the same."""
    model = case.model
    if not isinstance(model, Model):
        none = message("no config.json, and none in manifests/models.yaml")
        why = model.what if isinstance(model, UnknownModel) else none
        todo = message("--path model=DIR with its config.json")
        yield looked_at(_AREA, "model", "unknown", why, todo, needed=False)
        return
    what = message("{count} parameters ({source})", count=f"{model.parameters:,}", source=case.model_source)
    yield looked_at(_AREA, "model", "ok", what)
    yield from _length(case)
    total = min((d.total for d in case.smi.devices), default=None) if case.smi else None
    try:
        engine, training = engine_of(case, model), training_of(case, model)
        yield from _rollout(case, model, engine, total, 0 if case.apart else training.resident)
        yield _update(case, training)
        of_trainers = [*_training_on_the_host(case, model, training)]
        of_engines = [*_engine_on_the_host(case, model, engine)]
        for parts in (of_trainers, of_engines) if case.apart else ([*of_trainers, *of_engines],):
            yield from _on_the_host(case, parts)
        if _sleeps(case) and case.text(_LEVEL) == "2":
            what = message("nothing: {setting} lets go of the engine's weights", setting=f"{_LEVEL}=2")
            yield looked_at(_AREA, "engine asleep", "ok", what)
    except BadSizes as error:
        todo = message("sizes that divide: --size, or the recipe's overrides")
        yield looked_at(_AREA, "parallel sizes", "error", message("cannot be: {why}", why=error.what), todo)


def _length(case: Case) -> Iterator[Finding]:
    """verl before 0.9 asserts it when the engine is made, after the training's weights were loaded (vllm_rollout_spmd.py). Later ones cut
    answers there, and only a max_model_len that is set is refused (vllm_async_server.py); rope_scaling lengthens nothing.
    """
    cuts, given = case.is_of("verl", ">=0.9"), case.number(f"{ROLLOUT}.max_model_len") or 0
    most, wanted = context_length(case.model_config or {}, scaled=not cuts), max(case.sequence, given if cuts else 0)
    if most is None or not wanted:
        return
    name = "length"
    what = message(
        "{wanted} tokens of prompt and response; the model takes {most}, max_position_embeddings ({source})",
        wanted=f"{wanted:,}",
        most=f"{most:,}",
        source=case.model_source,
    )
    if wanted > most:
        todo = message(
            "another model, as Qwen3-235B-A22B-Thinking-2507 with 262,144: --path model=DIR; or shorter sequences"
        )
        refused = not cuts or given > most
        said = message("{what}: verl refuses it", what=what) if refused else message("{what}: cut there", what=what)
        yield looked_at(_AREA, name, "error", said, todo)
    else:
        yield looked_at(_AREA, name, "ok", what)


def _rollout(case: Case, model: Model, engine: Engine, total: int | None, resident: int) -> Iterator[Finding]:
    """`resident`: what the trainer keeps of a device meanwhile."""
    parts = engine_weights(model, engine)
    weights = sum(parts.values())
    largest = sorted(parts.items(), key=lambda p: -p[1])[:5]
    what = message(
        "{size} a device at {sizes} ({parts})",
        size=size_text(weights),
        sizes=_sizes(engine),
        parts=joined(message("{part} {size}", part=_PARTS.get(part, part), size=size_text(n)) for part, n in largest),
    )
    if total is None:
        yield _unknown("rollout weights", what)
        each = size_text(kv_bytes(model, engine.tensor))
        yield _unknown("sequences at once", message("KV cache: {size} a token", size=each))
        return
    share = utilisation(case)
    taken, free = int(total * share), _free(case)
    of_all = f"{float(share):g} x {size_text(total)}"
    if free is not None and taken > free - resident:
        left = max(0, free - resident)
        what_it_takes = message(
            "{share} are {taken}, and {free} are free", share=of_all, taken=size_text(taken), free=size_text(left)
        )
        at_most = int(100 * left / total) / 100
        setting = f"{ROLLOUT}.gpu_memory_utilization={at_most:g}"
        todo = message("end what else is on the devices")
        if resident:
            kept = message("{size} stay with the trainer", size=size_text(resident))
            what_it_takes = message("{what}, as {more}", what=what_it_takes, more=kept)
            todo = message("param_offload and optimizer_offload")
        if at_most:
            todo = message("{setting}, or {todo}", setting=setting, todo=todo)
        stops = message("{what}: the engine does not start", what=what_it_takes)
        yield looked_at(_AREA, "gpu_memory_utilization", "error", stops, todo)
    if weights >= taken:
        todo = message("a larger rollout tensor parallel, data parallel or expert parallel size")
        what = message("{what}, and the engine has {size}", what=what, size=size_text(taken))
        yield looked_at(_AREA, "rollout weights", "error", what, todo)
        return
    yield looked_at(_AREA, "rollout weights", "ok", message("{what}, of {size}", what=what, size=of_all))
    if not longest(case):
        unsaid = message("how long sequences are is not said")
        yield looked_at(_AREA, "sequences at once", "unknown", unsaid, needed=False)
        return
    tokens = case.number(f"{ROLLOUT}.max_num_batched_tokens") or longest(case)
    working = prefill_bytes(model, engine, tokens, case.number(CHUNK)) + moving_buffers(case)
    yield _sequences(case, model, engine, taken - weights - working, working)


def _sequences(case: Case, model: Model, engine: Engine, budget: int, working: int) -> Finding:
    """The largest max_num_seqs by the longest sequence and by the mean one."""
    length, (asked, allowed) = longest(case), _at_once(case, engine)
    most = sequences_that_fit(budget, model, engine.tensor, length)
    each = size_text(length * kv_bytes(model, engine.tensor))
    what = message(
        "{budget} for the KV cache after at least {working} to work in; {most} of {length} tokens ({each} each)",
        budget=size_text(max(0, budget)),
        working=size_text(working),
        most=most,
        length=f"{length:,}",
        each=each,
    )
    if most < 1:
        less = message("shorter sequences, a larger rollout tensor parallel size, or a larger gpu_memory_utilization")
        what = message("{what}: the engine does not start", what=what)
        return looked_at(_AREA, "sequences at once", "error", what, less)
    # verl gives vLLM the model's own limit where max_model_len is not set, and vLLM starts only where one such sequence fits.
    alone = case.is_of("verl", ">=0.9") and not case.number(f"{ROLLOUT}.max_model_len")
    held = context_length(case.model_config or {}, scaled=False) if alone else None
    if held and sequences_that_fit(budget, model, engine.tensor, held) < 1:
        what = message(
            "{what}, and none of {held}, the model's limit: the engine does not start", what=what, held=f"{held:,}"
        )
        todo = message("{setting}, or a larger gpu_memory_utilization", setting=f"{ROLLOUT}.max_model_len={length}")
        return looked_at(_AREA, "sequences at once", "error", what, todo)
    mean = min(case.mean_tokens, length)
    by_mean = sequences_that_fit(budget, model, engine.tensor, mean)
    if mean < length:
        what = message("{what}, {count} of {mean} on average", what=what, count=by_mean, mean=f"{mean:,}")
    if asked <= most:
        return looked_at(_AREA, "sequences at once", "ok", joined([what, allowed], "; "))
    if asked <= by_mean:
        what = message("{what}; {allowed}, which fit as long as few are long", what=what, allowed=allowed)
        return looked_at(_AREA, "sequences at once", "ok", what)
    what = message(
        "{what}; {allowed}: the engine puts requests back and computes them again while more than fit are long",
        what=what,
        allowed=allowed,
    )
    todo = message(
        "{setting} holds whatever comes, {mean} on average; 256 ran for 235B where 30 to 40 fit, because sequences end early",
        setting=f"{ROLLOUT}.max_num_seqs={most}",
        mean=by_mean,
    )
    return looked_at(_AREA, "sequences at once", "warning", what, todo, needed=False)


def _at_once(case: Case, engine: Engine) -> tuple[int, str]:
    """How many sequences a rank has at once: no more than max_num_seqs, nor than it is given."""
    most, given = case.number(f"{ROLLOUT}.max_num_seqs") or 0, sequences_of_a_rank(case, engine)
    if given is None or most <= given:
        return most, message("{name} is {value}", name="max_num_seqs", value=most)
    return given, message("max_num_seqs is {most}, and a rank is given {given}", most=most, given=given)


_Part = tuple[str, int, Translatable]  # of the host's memory: the finding's name, bytes of a machine, and what they are


def _training_on_the_host(case: Case, model: Model, training: Training) -> Iterator[_Part]:
    if kept := training.elsewhere * case.devices_per_node:
        said = message(
            "{size} a node for weights, reference and optimizer while they are off the devices", size=size_text(kept)
        )
        yield "states on the host", kept, said
    copied = case.text("trainer.v1.trainer_mode") == "separate_async"
    if copied and not case.on("algorithm.rollout_correction.bypass_mode"):
        # The next copy is made before the last one goes: verl v0.9.0, trainer_separate_async.py and engine_workers.py of experimental.
        kept = 2 * training.weights * case.devices_per_node
        said = message(
            "{size} a node while separate_async renews its copy of the actor's weights", size=size_text(kept)
        )
        yield "copy of the actor", kept, said
    if case.is_of("verl", ">=0.9") and _by_changes(case):  # delta_weight_update's copy of the trainer's shards
        kept = BF16 * model.parameters * case.devices_per_node // case.devices
        said = message("{size} a node to find what an update has changed", size=size_text(kept))
        yield "weights to compare with", kept, said


def _engine_on_the_host(case: Case, model: Model, engine: Engine) -> Iterator[_Part]:
    """From 0.9 on verl lets vLLM sleep at level 1 on NPUs, which copies its weights (vllm_async_server.py); the patch npu_sleep_level has
    level 2."""
    if not _sleeps(case) or case.text(_LEVEL) == "2":
        return
    kept = sum(engine_weights(model, engine).values()) * case.run.engine_devices_per_node
    said = message("{size} a node for the engine's weights while it sleeps", size=size_text(kept))
    if not _by_changes(case):  # which refuses level 2
        said = message("{what}; {setting} copies none", what=said, setting=f"{_LEVEL}=2")
    yield "engine asleep", kept, said


_LEVEL = f"{ROLLOUT}.npu_sleep_level"


def _sleeps(case: Case) -> bool:
    is_vllm = (case.text(f"{ROLLOUT}.name") or "vllm") == "vllm"
    return case.is_of("verl", ">=0.9") and is_vllm and not case.off(f"{ROLLOUT}.free_cache_engine")


def _by_changes(case: Case) -> bool:
    return case.text(f"{ROLLOUT}.checkpoint_engine.backend") == "delta_in_place"


def _on_the_host(case: Case, parts: Sequence[_Part]) -> Iterator[Finding]:
    """The engine falls asleep before the trainer's states come back to the devices: a machine has all parts at once."""
    has, of = host_memory(case)
    total = sum(kept for _, kept, _ in parts)
    for name, _, said in parts:
        if has is None:
            todo = message("look whether the machine has as much")
            yield looked_at(_AREA, name, "unknown", joined([said, of], "; "), todo)
            continue
        if len(parts) > 1:
            said = message("{what}, {total} together", what=said, total=size_text(total))
        said = message("{what}; {of} is {has}", what=said, of=of, has=size_text(has))
        todo = message("larger parallel sizes, or a larger limit of the container")
        yield judged(_AREA, name, "error" if total > has else "ok", said, todo)


def _free(case: Case) -> int | None:
    """What an idle device has free: what is in use then is the driver's, and stays so."""
    return min((d.total - d.used for d in case.smi.devices), default=None) if case.smi else None


def _update(case: Case, training: Training) -> Finding:
    what = message(
        "weights {weights}, gradients {gradients}, optimizer {optimizer}, activations {activations} ({how})",
        weights=size_text(training.weights),
        gradients=size_text(training.gradients),
        optimizer=size_text(training.optimizer),
        activations=size_text(training.activations),
        how=training.how,
    )
    if training.buffers:
        size = size_text(training.buffers)
        what = message("{what}, {size} for messages of hybrid data parallelism", what=what, size=size)
    if training.uneven:
        size = size_text(training.uneven)
        what = message("{what}, {size} more while one device gets all tokens of a layer", what=what, size=size)
    todo = message("larger tensor, pipeline, context or expert parallel sizes, recomputation, or swap_optimizer")
    free, left_by_rollout = _free(case), 0 if case.apart else LEFT_BY_ROLLOUT
    if case.smi is None or free is None:
        return _unknown("update", what)
    if case.off(f"{ROLLOUT}.free_cache_engine") and not case.apart:
        engine = int(min(d.total for d in case.smi.devices) * utilisation(case))
        free, left_by_rollout = max(0, free - engine), 0
        what = message(
            "{what}; the engine keeps {size} of it (free_cache_engine is off)", what=what, size=size_text(engine)
        )
        todo = message("{setting}, or {todo}", setting=f"{ROLLOUT}.free_cache_engine=True", todo=todo)
    if training.states > free:
        what = message(
            "{what}: more than the {free} that are free, without activations", what=what, free=size_text(free)
        )
        return looked_at(_AREA, "update", "error", what, todo)
    said = message(
        "{what}: {total} of {free} that are free", what=what, total=size_text(training.total), free=size_text(free)
    )
    over = training.total + left_by_rollout > free
    if over and left_by_rollout:
        said = message("{what}, and the rollout leaves 8 to 9 GB behind", what=said)
    return judged(_AREA, "update", "warning" if over else "ok", said, todo, needed=False)


def _unknown(name: str, what: str) -> Finding:
    todo = message("look on the machine itself, or at a recording of it")
    what = message("{what}; the device's memory is not known", what=what)
    return looked_at(_AREA, name, "unknown", what, todo, needed=False)


def _sizes(engine: Engine) -> Translatable:
    what = message("tensor parallel {tensor}, data parallel {data}", tensor=engine.tensor, data=engine.data)
    return (
        message("{what}, experts over {devices}", what=what, devices=engine.devices) if engine.spread_experts else what
    )
