"""A small SVG of the benchmark of apply: CPU seconds against patches, and against files in the tree; both axes are logarithmic."""

from __future__ import annotations

import math

_COLOURS = {"git am": "#000", "git apply": "#888", "computed": "#c33", "remembered": "#36c", "nothing to do": "#393"}
_WIDTH, _HEIGHT, _EDGE = 420, 300, 50

Times = dict[str, float]
"""CPU seconds by tool."""


def draw(by_patches: dict[int, Times], by_files: dict[int, Times]) -> str:
    """One chart of series that differ in patches, one of trees that differ in files and have as many patches each."""
    charts = _chart("patches", by_patches, 0) + _chart("files in the tree, 35 patches", by_files, _WIDTH)
    size = f'width="{2 * _WIDTH}" height="{_HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *charts, "</svg>", ""])


def _chart(title: str, values: dict[int, Times], left: int) -> list[str]:
    if not values:
        return []
    seconds = [s for times in values.values() for s in times.values()]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    first, last = math.log10(min(values)), math.log10(max(values))

    def x(value: float) -> float:
        return left + _EDGE + (math.log10(value) - first) / ((last - first) or 1) * (_WIDTH - 2 * _EDGE)

    def y(value: float) -> float:
        return _HEIGHT - _EDGE - (math.log10(value) - low) / ((high - low) or 1) * (_HEIGHT - 2 * _EDGE)

    out = [f'<text x="{left + _WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{title}; CPU seconds</text>']
    for power in range(low, high + 1):
        at = y(10.0**power)
        out.append(
            f'<line x1="{left + _EDGE}" x2="{left + _WIDTH - _EDGE}" y1="{at:.0f}" y2="{at:.0f}" stroke="#ddd"/>'
        )
        out.append(f'<text x="{left + _EDGE - 6}" y="{at + 4:.0f}" text-anchor="end">{10.0**power:g}</text>')
    out += [f'<text x="{x(v):.0f}" y="{_HEIGHT - 32}" text-anchor="middle">{v:,}</text>' for v in values]
    for number, (tool, colour) in enumerate(_COLOURS.items()):
        line = " ".join(f"{x(v):.1f},{y(times[tool]):.1f}" for v, times in values.items())
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out += [f'<circle cx="{x(v):.1f}" cy="{y(t[tool]):.1f}" r="2.5" fill="{colour}"/>' for v, t in values.items()]
        out.append(f'<text x="{left + _EDGE + 8}" y="{30 + 13 * number}" fill="{colour}">{tool}</text>')
    return out
