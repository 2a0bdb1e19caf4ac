"""Draws runs: reward, response length, throughput, and time a phase. Needs matplotlib, and nothing that has a screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from log.console import Run
from log.summary import OTHER, PHASES, phases

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg")
_INCHES = (13.0, 8.0)
_DPI = 120
# Markers say where points are; on a long run they hide the line.
_FEW_POINTS = 60
# Okabe and Ito's colours, which people with a colour vision deficiency can tell apart.
_RUN_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PHASE_COLOURS = dict(zip((*PHASES, OTHER), ("#0072B2", "#56B4E9", "#F0E442", "#E69F00", "#CC79A7", "#999933", "#882255",
                                             "#44AA99", "#D55E00", "#AA4499", "#BBBBBB"), strict=True))  # fmt: skip


def draw(runs: Sequence[Run], out: Path, target: Path) -> None:
    """Draw the runs into `target`, in the format that the name of `out` says.

    The same log gives the same SVG. Raises ImportError without matplotlib, OSError when the file cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "plot_log", "svg.fonttype": "none"}):
        figure = Figure(figsize=_INCHES, layout="constrained")
        (reward, length), (throughput, time) = figure.subplots(2, 2)
        _lines(reward, runs, "critic/rewards/mean", "reward", "critic/rewards/mean")
        _length(length, runs)
        _lines(throughput, runs, "perf/throughput", "throughput", "tokens/s/device")
        _from_zero(throughput)
        if len(runs) == 1:
            _time_over_steps(time, runs[0])
        else:
            _time_by_run(time, runs)
        if len(runs) > 1:
            reward.legend(fontsize="small")
        kind = out.suffix.lower()[1:]
        # A date in the file would make every picture of the same log another file.
        dated: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {}
        figure.savefig(target, format=kind, dpi=_DPI, **dated)


def _lines(axes: Axes, runs: Sequence[Run], key: str, title: str, unit: str) -> None:
    drawn = [_line(axes, run, key, colour) for run, colour in _coloured(runs)]
    _frame(axes, title, unit, any(drawn), key)


def _line(axes: Axes, run: Run, key: str, colour: str, style: str = "-", label: str = "") -> bool:
    steps, values = run.series(key)
    marker = "o" if len(steps) <= _FEW_POINTS else ""
    axes.plot(steps, values, style, color=colour, marker=marker, markersize=3, label=label or run.name)
    return bool(steps)


def _length(axes: Axes, runs: Sequence[Run]) -> None:
    drawn = [_line(axes, run, "response_length/mean", colour, label="mean") for run, colour in _coloured(runs)]
    for run, colour in _coloured(runs):
        _line(axes, run, "response_length/max", colour, ":", label="longest")
    _frame(axes, "response length", "tokens", any(drawn), "response_length/mean")
    _from_zero(axes)
    cut = axes.twinx()
    for run, colour in _coloured(runs):
        _line(cut, run, "response_length/clip_ratio", colour, "--", label="at the limit (right)")
    cut.set_ylabel("share of responses at the limit")
    cut.set_ylim(0, 1)
    lines = [*axes.get_lines()[:: len(runs)], *cut.get_lines()[:1]]
    axes.legend(lines, [str(line.get_label()) for line in lines], loc="upper left", fontsize="small")


def _from_zero(axes: Axes) -> None:
    """An axis that begins at 0, so that a change looks as large as it is, with room above for a legend."""
    top = axes.dataLim.y1
    axes.set_ylim(0, 1.25 * top if 0 < top < math.inf else 1)


def _time_over_steps(axes: Axes, run: Run) -> None:
    steps = [step for step, values in sorted(run.steps.items()) if values.get("timing_s/step", 0) > 0]
    names = [phase.name for phase in phases(run)]
    stacks = [[_seconds(run.steps[step], name, names) for step in steps] for name in names]
    colours = [_PHASE_COLOURS[name] for name in names]
    if len(steps) > 1:
        axes.stackplot(steps, stacks, labels=names, colors=colours)
    else:
        _bars(axes, [str(step) for step in steps], names, stacks)
    _frame(axes, "time a phase", "s", bool(steps), "timing_s/step")
    if steps:
        axes.legend(fontsize="small", reverse=True)


def _seconds(values: dict[str, float], name: str, names: Sequence[str]) -> float:
    if name != OTHER:
        return values.get(f"timing_s/{name}", 0.0)
    known = sum(values.get(f"timing_s/{phase}", 0.0) for phase in names if phase != OTHER)
    return max(0.0, values["timing_s/step"] - known)


def _time_by_run(axes: Axes, runs: Sequence[Run]) -> None:
    found = {run.name: {phase.name: phase.seconds for phase in phases(run)} for run in runs}
    names = [name for name in (*PHASES, OTHER) if any(name in one for one in found.values())]
    _bars(axes, list(found), names, [[max(0.0, one.get(name, 0.0)) for one in found.values()] for name in names])
    _frame(axes, "time a phase, mean of all steps", "s", bool(names), "timing_s/step")
    axes.set_xlabel("")
    if names:
        axes.legend(fontsize="small", reverse=True)


def _bars(axes: Axes, labels: Sequence[str], names: Sequence[str], stacks: Sequence[Sequence[float]]) -> None:
    below = [0.0] * len(labels)
    for name, seconds in zip(names, stacks, strict=True):
        axes.bar(labels, seconds, bottom=below, label=name, color=_PHASE_COLOURS[name], width=0.5)
        below = [a + b for a, b in zip(below, seconds, strict=True)]


def _frame(axes: Axes, title: str, unit: str, drawn: bool, key: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    if not drawn:
        axes.text(0.5, 0.5, f"no {key} in the log", transform=axes.transAxes, ha="center", va="center")


def _coloured(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    return [(run, _RUN_COLOURS[place % len(_RUN_COLOURS)]) for place, run in enumerate(runs)]
