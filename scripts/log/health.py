"""Hints on a run's health, out of its log: what to look at, by which rule, and whose rule it is.

They are hints. Thresholds that no document gives are marked as ours; they are wide on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance
from typing import Literal

from log.console import Run

# A third of this many steps is the least that says anything about a trend.
ENOUGH_STEPS = 9
CLEAR_CHANGE = 2.0  # standard errors between the first and the last third
CLIPPED = 0.10
COLLAPSED = 0.10
SLOWER = 0.80
IDLE = 0.25
HOST_GROWTH = 1.20
DEVICE_GROWTH_GIB = 0.5

State = Literal["ok", "look", "unknown"]


@dataclass(frozen=True)
class Hint:
    """`state` is ok, look, or unknown where the log has too little; `source` says whose rule it is."""

    rule: str
    state: State
    text: str
    source: str


def hints(run: Run, devices: int | None = None) -> list[Hint]:
    """Every rule that the log has the metrics for. `devices` is what the user says the run has."""
    found = [rule(run) for rule in _RULES]
    return [hint for hint in [*found, _devices(run, devices)] if hint is not None]


def counted_devices(run: Run) -> int | None:
    """The devices that verl divided its throughput by; None when the log does not have all three figures."""
    keys = ("perf/total_num_tokens", "perf/time_per_step", "perf/throughput")
    for _, values in sorted(run.steps.items(), reverse=True):
        tokens, seconds, throughput = (values.get(key, math.nan) for key in keys)
        if all(0 < value < math.inf for value in (tokens, seconds, throughput)):
            devices = tokens / seconds / throughput
            return round(devices) if math.isfinite(devices) else None
    return None


def _finite(run: Run, key: str) -> list[float]:
    return [value for value in run.series(key)[1] if math.isfinite(value)]


def _thirds(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float], Sequence[float]] | None:
    if len(values) < ENOUGH_STEPS:
        return None
    third = len(values) // 3
    return values[:third], values[third:-third], values[-third:]


def _too_few(rule: str, values: Sequence[float], source: str) -> Hint | None:
    if not values:
        return None
    return Hint(rule, "unknown", f"too few steps to tell: {len(values)} of at least {ENOUGH_STEPS}", source)


def _reward(run: Run) -> Hint | None:
    source = "003, 4.6: critic/rewards/mean rises over the run"
    values = _finite(run, "critic/rewards/mean")
    thirds = _thirds(values)
    if thirds is None:
        return _too_few("reward", values, source)
    first, _, last = thirds
    change = fmean(last) - fmean(first)
    noise = math.sqrt(variance(first) / len(first) + variance(last) / len(last))
    told = f"critic/rewards/mean: {fmean(first):.4g} in the first third, {fmean(last):.4g} in the last"
    if abs(change) <= CLEAR_CHANGE * noise or change == 0:
        return Hint("reward", "look", f"{told}: no clear change yet", source)
    return Hint("reward", "ok" if change > 0 else "look", f"{told}: it {'rises' if change > 0 else 'falls'}", source)


def _length(run: Run) -> Hint | None:
    # From verl 0.9 on the share is that of the batch's longest: it counts where that is as long as any of the run.
    limit = max(_finite(run, "response_length/max"), default=0.0)
    values = [
        share if of.get("response_length/max", limit) >= limit else 0.0
        for _, of in sorted(run.steps.items())
        if math.isfinite(share := of.get("response_length/clip_ratio", math.nan))
    ]
    if not values:
        return None
    thirds = _thirds(values)
    share = fmean(thirds[2] if thirds else values)
    source = f"003, 4.1.1: answers that are cut are punished; {CLIPPED:.0%} is ours"
    text = f"{share:.1%} of the responses fill the limit"
    if share <= CLIPPED:
        return Hint("length", "ok", text, source)
    return Hint("length", "look", f"{text}: raise data.max_response_length, or punish length earlier", source)


def _entropy(run: Run) -> Hint | None:
    source = f"003, 4.1.1: the higher clip bound keeps entropy up; a fall below {COLLAPSED:.0%} is ours"
    values = _finite(run, "actor/entropy")
    thirds = _thirds(values)
    if thirds is None:
        return _too_few("entropy", values, source)
    before, now = fmean(thirds[0]), fmean(thirds[2])
    text = f"actor/entropy: {before:.4g} in the first third, {now:.4g} in the last"
    collapsed = before > 0 and now < COLLAPSED * before
    return Hint("entropy", "look" if collapsed else "ok", f"{text}{': it collapses' if collapsed else ''}", source)


def _throughput(run: Run) -> Hint | None:
    source = f"000: memory that is not given back, uneven engines; a fall below {SLOWER:.0%} is ours"
    values = _finite(run, "perf/throughput")
    thirds = _thirds(values)
    if thirds is None:
        return _too_few("throughput", values, source)
    before, now = median(thirds[0]), median(thirds[2])
    text = f"perf/throughput: {before:.4g} in the first third, {now:.4g} in the last"
    if now >= SLOWER * before:
        return Hint("throughput", "ok", text, source)
    lengths = _thirds(_finite(run, "response_length/mean"))
    grown = f"; responses are {fmean(lengths[2]) / fmean(lengths[0]):.2g} times as long" if lengths else ""
    return Hint("throughput", "look", f"{text}: it falls{grown}", source)


def _engines(run: Run) -> Hint | None:
    keys = ("timing_s/generation_timing/min", "timing_s/generation_timing/max")
    pairs = [(v[keys[0]], v[keys[1]]) for v in run.steps.values() if v.get(keys[1], -1) > 0 and keys[0] in v]
    if not pairs:
        return None
    idle = fmean(1 - low / high for low, high in pairs)
    source = f"linked from 002: 65 % idle before, {IDLE:.0%} after balancing; 000: engines two hours apart time out"
    text = f"the first rank is idle for {idle:.0%} of generation"
    if idle <= IDLE:
        return Hint("engines", "ok", text, source)
    return Hint("engines", "look", f"{text}: see data_rebalance and rollout_rebalance", source)


def _host_memory(run: Run) -> Hint | None:
    key = run.of_actor("perf/cpu_memory_used_gb")
    thirds = _thirds(_finite(run, key))
    if thirds is None:
        return None
    before, now = fmean(thirds[0]), fmean(thirds[2])
    source = f"000: the controller's memory; growth by {HOST_GROWTH - 1:.0%} is ours"
    text = f"{key}: {before:.4g} in the first third, {now:.4g} in the last"
    grows = now > HOST_GROWTH * before
    return Hint("host-memory", "look" if grows else "ok", f"{text}{': it grows' if grows else ''}", source)


def _device_memory(run: Run) -> Hint | None:
    key = run.of_actor("perf/max_memory_reserved_gb")
    thirds = _thirds(_finite(run, key))
    if thirds is None:
        return None
    growth = max(thirds[2]) - max(thirds[1])
    source = "000: 0.55 GB a step were not given back (30B), until the rollout ran out of memory"
    text = f"{key}: {max(thirds[2]):.4g}, {growth:+.2g} GiB in the last third"
    return Hint("device-memory", "look" if growth > DEVICE_GROWTH_GIB else "ok", text, source)


def _aborted(run: Run) -> Hint | None:
    worst = max(_finite(run, "response/aborted_ratio"), default=0.0)
    if worst <= 0:
        return None
    text = f"in a step {worst:.1%} of the responses have no token: the engine dropped requests"
    return Hint("aborted", "look", text, "verl v0.6.0, compute_data_metrics")


def _numbers(run: Run) -> Hint | None:
    odd = dict[str, int]()
    for step, values in sorted(run.steps.items()):
        for key, value in values.items():
            if not math.isfinite(value):
                odd.setdefault(key, step)
    if not odd:
        return None
    shown = ", ".join(f"{key} from step {step}" for key, step in list(odd.items())[:5])
    more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
    return Hint(
        "numbers", "look", f"not a finite number: {shown}{more}", "verl v0.6.0: such an update is skipped (FSDP)"
    )


def _devices(run: Run, said: int | None) -> Hint | None:
    counted = counted_devices(run)
    if said is None or counted is None:
        return None
    source = "perf/total_num_tokens / (perf/time_per_step * perf/throughput)"
    if counted == said:
        return Hint("devices", "ok", f"verl counts {counted} devices, as you say", source)
    card = ": an A3 card is two devices" if counted == 2 * said else ""
    return Hint("devices", "look", f"verl divides by {counted} devices, and you say {said}{card}", source)


_RULES: tuple[Callable[[Run], Hint | None], ...] = (
    _numbers,
    _reward,
    _length,
    _entropy,
    _throughput,
    _engines,
    _aborted,
    _device_memory,
    _host_memory,
)


def worth_a_look(found: Sequence[Hint]) -> Iterator[Hint]:
    """Those that ask for attention."""
    return (hint for hint in found if hint.state == "look")
