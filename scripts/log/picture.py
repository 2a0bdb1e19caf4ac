"""Draws runs, nine panels: reward, lengths, what they say of the policy, throughput, memory, time per phase. Needs matplotlib,
and nothing that has a screen.

A run has a colour and a mark of its own in every panel. Legends stand outside of the axes, so that no value is under one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from log.console import Run
from log.summary import OTHER, PHASES, phases

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
_INCHES = (16.0, 10.5)
_DPI = 110
# Beyond this many steps a median of steps is drawn above the noise.
_FEW_POINTS = 60
# Up to so many steps each has its mark; beyond, a run has about so many, since marks side by side hide the line.
_MARKS = 10
# Okabe and Ito's colours, which people with a colour vision deficiency can tell apart; the marks do it without colour.
_RUN_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_RUN_MARKS = ("o", "s", "^", "D", "v", "P", "X")
# A second line of one run in one panel is dotted, and grey where there is no other run.
_SECOND = "#666666"
_PHASE_COLOURS = dict(
    zip(
        (*PHASES, OTHER),
        (
            "#0072B2",
            "#332288",
            "#F0E442",
            "#E69F00",
            "#56B4E9",
            "#999933",
            "#882255",
            "#44AA99",
            "#009E73",
            "#CC6677",
            "#661100",
            "#AA4499",
            "#BBBBBB",
        ),
        strict=True,
    )
)


@dataclass(frozen=True)
class _Drawn:
    """A run with what tells it from the others. `first` is where its marks begin, as a share of the way between two: those of
    equal lines would lie upon each other."""

    run: Run
    colour: str
    mark: str
    first: float


def draw(runs: Sequence[Run], out: Path, target: Path) -> None:
    """Draw the runs into `target`, in the format that the name of `out` says.

    The same log gives the same SVG. Raises ImportError without matplotlib, OSError when the file cannot be written.
    """
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "plot_log", "svg.fonttype": "none"}):
        kind = out.suffix.lower()[1:]
        # A date in the file would make every picture of the same log another file.
        dated: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {}
        figure_of(runs).savefig(target, format=kind, dpi=_DPI, **dated)


def figure_of(runs: Sequence[Run]) -> Figure:
    """The picture. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    drawn = [
        _Drawn(run, _RUN_COLOURS[place % len(_RUN_COLOURS)], _RUN_MARKS[place % len(_RUN_MARKS)], place / len(runs))
        for place, run in enumerate(runs)
    ]
    (reward, length, limit), (entropy, divergence, norm), (throughput, memory, time) = figure.subplots(3, 3)
    _panel(reward, drawn, "reward", "critic/rewards/mean", ["critic/rewards/mean"])
    _panel(length, drawn, "response length", "tokens", ["response_length/mean", "response_length/max"], low=0)
    _panel(limit, drawn, "responses at the limit", "share", ["response_length/clip_ratio"], low=0)
    _panel(entropy, drawn, "policy entropy", "actor/entropy", ["actor/entropy"], low=0)
    _divergence(divergence, drawn)
    _panel(norm, drawn, "gradient norm", "before clipping", ["actor/grad_norm"], low=0)
    _panel(throughput, drawn, "throughput", "tokens/s/device", ["perf/throughput"], low=0)
    _memory(memory, drawn)
    _time(time, runs)
    _legend_of_runs(figure, drawn)
    if any(_span(run) > 1 for run in runs):
        figure.supxlabel("pale: every step; strong: the median of the steps around it", fontsize="small", color=_SECOND)
    return figure


def _legend_of_runs(figure: Figure, drawn: Sequence[_Drawn]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=one.colour, marker=one.mark, label=one.run.name) for one in drawn]
    figure.legend(handles=lines, loc="outside upper center", ncols=min(len(lines), 4), frameon=False)


def _memory(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    """A device's; of runs that do not say it, the host's."""
    of_device = ["perf/max_memory_reserved_gb", "perf/max_memory_allocated_gb"]
    of_host = "perf/cpu_memory_used_gb"

    def has(key: str) -> bool:
        return any(one.run.series(one.run.of_actor(key))[0] for one in drawn)

    if has(of_host) and not has(of_device[0]):
        _panel(axes, drawn, "host memory", "GiB", [of_host], low=0)
    else:
        _panel(axes, drawn, "device memory", "GiB, peak so far", of_device, low=0)


def _divergence(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    """The KL that a run is held by, where one has it; else how far a step's updates went."""
    if any("actor/kl_loss" in values for one in drawn for values in one.run.steps.values()):
        _panel(axes, drawn, "KL to the reference policy", "actor/kl_loss", ["actor/kl_loss"], low=0)
    else:
        _panel(axes, drawn, "KL of old and new policy", "actor/ppo_kl", ["actor/ppo_kl"])


def _panel(
    axes: Axes, drawn: Sequence[_Drawn], title: str, unit: str, keys: Sequence[str], low: float | None = None
) -> None:
    """A line a run and key; the second key is dotted. `low` is where the axis begins, so that changes look as large as they are."""
    from matplotlib.ticker import MaxNLocator

    odd = [
        _line(axes, one, one.run.of_actor(key), second=bool(place), alone=len(drawn) == 1)
        for place, key in enumerate(keys)
        for one in drawn
    ]
    _frame(axes, title, unit)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
    if not axes.lines:
        _say(axes, f"no {keys[0]} in the log")
        return
    if low is not None:
        top = axes.dataLim.y1
        axes.set_ylim(low, 1.05 * top if low < top < math.inf else low + 1)
    if sum(odd):
        axes.set_xlabel(f"step; at {sum(odd)} the value is not finite")
    if len(keys) > 1:
        _legend_of_keys(axes, keys, drawn)


def _say(axes: Axes, what: str) -> None:
    """In place of a curve: no frame and no scale, which would look like values."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, what, transform=axes.transAxes, ha="center", va="center", color=_SECOND)


def _line(axes: Axes, one: _Drawn, key: str, *, second: bool, alone: bool) -> int:
    """Draws a key of a run, and returns at how many steps it is no finite number."""
    steps, written = one.run.series(key)
    if not steps:
        return 0
    values = [value if math.isfinite(value) else math.nan for value in written]
    span = 1 if second else _span(one.run)
    look: dict[str, Any] = {"color": _SECOND if second and alone else one.colour, "linestyle": ":" if second else "-"}
    if span > 1:
        axes.plot(steps, values, alpha=0.35, linewidth=0.8, **look)
        values = _smooth(values, span)
    every = -(-len(steps) // _MARKS)
    axes.plot(
        steps, values, marker=one.mark, markersize=5, markevery=(int(one.first * every), every), linewidth=1.6, **look
    )
    return sum(not math.isfinite(value) for value in written)


def _span(run: Run) -> int:
    """Over how many steps the strong line is a median."""
    return 1 if len(run.steps) <= _FEW_POINTS else max(5, len(run.steps) // 40) | 1


def _smooth(values: Sequence[float], span: int) -> list[float]:
    """The median of the values around each, of fewer at both ends; what is not finite is left out. A mean would make a step
    of every outlier."""
    found = []
    for place in range(len(values)):
        near = [v for v in values[max(0, place - span // 2) : place + span // 2 + 1] if math.isfinite(v)]
        found.append(median(near) if near else math.nan)
    return found


def _legend_of_keys(axes: Axes, keys: Sequence[str], drawn: Sequence[_Drawn]) -> None:
    from matplotlib.lines import Line2D

    colours = (drawn[0].colour, _SECOND) if len(drawn) == 1 else ("#000000", "#000000")
    styles: tuple[Literal["-", ":"], ...] = ("-", ":")
    lines = [
        Line2D(
            [],
            [],
            color=colour,
            linestyle=style,
            label=key.rpartition("/")[2].removeprefix("max_memory_").removesuffix("_gb"),
        )
        for key, style, colour in zip(keys, styles, colours, strict=True)
    ]
    _beside_title(axes, lines)


def _beside_title(axes: Axes, handles: Sequence[Any]) -> None:
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(handles),
        frameon=False,
        fontsize="x-small",
        borderpad=0.2,
        columnspacing=1.0,
        handlelength=1.8,
    )


def _time(axes: Axes, runs: Sequence[Run]) -> None:
    """Time per phase: over the steps of one run, or the mean of all steps, run beside run."""
    if len(runs) == 1:
        run = runs[0]
        steps = [step for step, values in sorted(run.steps.items()) if values.get("timing_s/step", 0) > 0]
        names = [phase.name for phase in phases(run)]
        stacks = [[_seconds(run.steps[step], name, names) for step in steps] for name in names]
        labels = [str(step) for step in steps]
    else:
        found = {run.name: {phase.name: phase.seconds for phase in phases(run)} for run in runs}
        names = [name for name in (*PHASES, OTHER) if any(name in one for one in found.values())]
        stacks = [[max(0.0, one.get(name, 0.0)) for one in found.values()] for name in names]
        steps, labels = [], list(found)
    colours = [_PHASE_COLOURS[name] for name in names]
    if len(steps) > 1:
        axes.stackplot(steps, stacks, labels=names, colors=colours)
    else:
        _bars(axes, labels, names, stacks)
    _frame(axes, "time per phase" if len(runs) == 1 else "time per phase, mean of all steps", "s")
    if len(runs) > 1:
        axes.set_xlabel("")
        axes.tick_params(axis="x", labelrotation=20 if len(runs) > 2 else 0)
    if not names:
        _say(axes, "no timing_s/step in the log")
        return
    axes.set_ylim(0, 1.05 * axes.dataLim.y1 or 1)  # bars that end at the frame look cut
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small", reverse=True, frameon=False)


def _seconds(values: dict[str, float], name: str, names: Sequence[str]) -> float:
    if name != OTHER:
        return values.get(f"timing_s/{name}", 0.0)
    known = sum(values.get(f"timing_s/{phase}", 0.0) for phase in names if phase != OTHER)
    return max(0.0, values["timing_s/step"] - known)


def _bars(axes: Axes, labels: Sequence[str], names: Sequence[str], stacks: Sequence[Sequence[float]]) -> None:
    below = [0.0] * len(labels)
    for name, seconds in zip(names, stacks, strict=True):
        axes.bar(
            labels,
            seconds,
            bottom=below,
            label=name,
            color=_PHASE_COLOURS[name],
            width=0.5,
            edgecolor="white",
            linewidth=0.3,
        )
        below = [a + b for a, b in zip(below, seconds, strict=True)]


def _frame(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_xlabel("step")
    axes.set_ylabel(unit, fontsize="small")
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
