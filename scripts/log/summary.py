"""What a log comes to: time per phase, the metrics' figures, and the same as text, JSON and CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import IO, Any

from log.console import Run
from log.health import Hint, counted_devices
from log.metrics import explanation, order, sections

from patchctl.terminal.text import counted

# What the timer of a step encloses (fit of ray_trainer.py, dapo_ray_trainer.py and v1/trainer_base.py), in the order in which it happens.
PHASES = (
    "gen",
    "gen_max",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "save_checkpoint",
    "update_weights",
    "dump_rollout_generations",
)
OTHER = "other"
_LARGE = 1e4
_STATES = {"ok": "ok", "look": "LOOK", "unknown": "?"}


@dataclass(frozen=True)
class Phase:
    """Mean seconds of a phase over the steps that have a time, and its share of the step."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True)
class Figures:
    """A metric over a run. `count` steps have it; those where it is not a finite number are counted apart."""

    first: float
    last: float
    mean: float
    min: float
    max: float
    count: int
    not_finite: int


def phases(run: Run) -> list[Phase]:
    """The step's phases, and what is left of the step as `other`; empty when the log has no timing_s/step."""
    timed = [values for values in run.steps.values() if values.get("timing_s/step", 0) > 0]
    if not timed:
        return []
    step = fmean(values["timing_s/step"] for values in timed)
    present = [p for p in PHASES if any(f"timing_s/{p}" in values for values in timed)]
    if "update_weights" not in present:  # a trainer before verl 0.9, which writes checkpoints when the step is over
        present = [p for p in present if p != "save_checkpoint"]
    found = [Phase(p, seconds := _mean_time(timed, p), seconds / step) for p in present]
    rest = step - sum(phase.seconds for phase in found)
    return [*found, Phase(OTHER, rest, rest / step)]


def _mean_time(timed: Sequence[dict[str, float]], phase: str) -> float:
    return fmean(values.get(f"timing_s/{phase}", 0.0) for values in timed)


def figures(run: Run) -> dict[str, Figures]:
    """Every metric of the run, in the order of docs/metrics.md, those that are not in it last."""
    return {key: _figures(run.series(key)[1]) for key in sorted(run.metrics(), key=order)}


def _figures(values: Sequence[float]) -> Figures:
    finite = [value for value in values if math.isfinite(value)] or [math.nan]
    odd = sum(not math.isfinite(value) for value in values)
    return Figures(values[0], values[-1], fmean(finite), min(finite), max(finite), len(values), odd)


def as_json(runs: Sequence[tuple[Run, Sequence[Hint]]]) -> dict[str, Any]:
    """The summary for a machine. What is not a finite number is null, which JSON has and NaN it has not."""
    return {"schema": "patchctl.plot_log/1", "runs": [_run_json(run, found) for run, found in runs]}


def _run_json(run: Run, found: Sequence[Hint]) -> dict[str, Any]:
    metrics = figures(run)
    return {
        "name": run.name,
        "first_step": min(run.steps),
        "last_step": max(run.steps),
        "steps": len(run.steps),
        "devices": counted_devices(run),
        "notes": run.notes,
        "phases": [{name: _or_null(value) for name, value in asdict(phase).items()} for phase in phases(run)],
        "hints": [asdict(hint) for hint in found],
        "metrics": {key: {name: _or_null(value) for name, value in asdict(f).items()} for key, f in metrics.items()},
        "unknown_metrics": [key for key in metrics if explanation(key) is None],
    }


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(runs: Sequence[Run], stream: IO[str]) -> None:
    """One row a step and run; a column a metric, empty where a step has none."""
    keys = sorted({key for run in runs for key in run.metrics()}, key=order)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["run", "step", *keys])
    for run in runs:
        for step, values in sorted(run.steps.items()):
            writer.writerow([run.name, step, *(repr(values[key]) if key in values else "" for key in keys)])


def text(runs: Sequence[tuple[Run, Sequence[Hint]]]) -> Iterator[str]:
    """The summary for a person: each run, and the metrics' table, of several runs side by side."""
    for run, found in runs:
        yield from _run_text(run, found)
    if len(runs) == 1:
        yield from _table(runs[0][0])
    else:
        yield from _comparison([run for run, _ in runs])


def _run_text(run: Run, found: Sequence[Hint]) -> Iterator[str]:
    devices = counted_devices(run)
    on = f", {counted(devices, 'device')}" if devices else ""
    yield f"{run.name}: {counted(len(run.steps), 'step')}, {min(run.steps)} to {max(run.steps)}{on}"
    shown = run.notes[:10]
    yield from (f"  note: {note}" for note in shown)
    if len(run.notes) > len(shown):
        yield f"  note: ... and {len(run.notes) - len(shown)} more"
    yield ""
    parts = phases(run)
    if parts:
        yield f"  {'phase (mean)':<30} {'seconds':>10}  share of the step"
        yield from (f"  {phase.name:<30} {phase.seconds:>10.1f}  {phase.share:>6.1%}" for phase in parts)
        yield f"  {'step':<30} {sum(phase.seconds for phase in parts):>10.1f}"
        yield ""
    yield from (f"  {_STATES[hint.state]:<4}  {hint.text}  [{hint.source}]" for hint in found)
    yield ""


def _table(run: Run) -> Iterator[str]:
    found = figures(run)
    width = max(map(len, found))
    yield f"{'':<{width + 2}} {'first':>11} {'last':>11} {'mean':>11} {'min':>11} {'max':>11}"
    for title, keys in _by_section(found):
        yield title
        for key, what in _explained(keys):
            f = found[key]
            numbers = " ".join(f"{_number(value):>11}" for value in (f.first, f.last, f.mean, f.min, f.max))
            yield f"  {key:<{width}} {numbers}  {what}".rstrip()


def _comparison(runs: Sequence[Run]) -> Iterator[str]:
    """Means over the steps that all runs have: a run that went on longer is not compared by its later steps."""
    common = sorted(set.intersection(*(set(run.steps) for run in runs)))
    if not common:
        yield "The runs have no step in common: there is nothing to compare."
        return
    yield f"mean over the {len(common)} steps that all have, {common[0]} to {common[-1]}; then by {runs[0].name}"
    cut = [Run(run.name, {step: run.steps[step] for step in common}) for run in runs]
    tables = [figures(run) for run in cut]
    keys = sorted({key for table in tables for key in table}, key=order)
    width = max(map(len, keys), default=0)
    yield f"{'':<{width + 2}} " + " ".join(f"{run.name[-20:]:>20}" for run in runs)
    for title, listed in _by_section(keys):
        yield title
        for key, what in _explained(listed):
            means = [table[key].mean if key in table else math.nan for table in tables]
            cells = [f"{_number(means[0]):>20}", *(f"{_ratio(mean, means[0]):>20}" for mean in means[1:])]
            yield f"  {key:<{width}} {' '.join(cells)}  {what}".rstrip()


def _ratio(mean: float, first: float) -> str:
    """With the ratio, where there is one: a reward may go from below 0 to above it."""
    if not (first > 0 and mean > 0 and math.isfinite(mean / first)):
        return _number(mean)
    return f"{_number(mean)} ({mean / first:.2f}x)"


def _number(value: float) -> str:
    """Five digits; tokens are counted in millions, and an exponent would hide by how much two of them differ."""
    return f"{value:.0f}" if _LARGE <= abs(value) < 1e10 else f"{value:.5g}"


def _by_section(keys: Sequence[str] | dict[str, Figures]) -> Iterator[tuple[str, list[str]]]:
    left = list(keys)
    for section in sections():
        mine = [key for key in left if explanation(key) in section.metrics]
        left = [key for key in left if key not in mine]
        if mine:
            yield section.title, mine
    if left:
        yield "Not explained here (another version, or a metric of your own)", left


def _explained(keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each metric with what it is, said once for those that share an entry."""
    before = None
    for key in keys:
        metric = explanation(key)
        unit = f" [{metric.unit}]" if metric and metric.unit else ""
        yield key, f"{metric.what}{unit}" if metric and metric is not before else ""
        before = metric
