"""A small SVG of the benchmark of apply: CPU seconds against patches, and against files in the tree; both axes are logarithmic."""

from __future__ import annotations

import math

# Okabe and Ito's colours, which the colour-blind tell apart; a dash and a mark of its own for those who print it in grey.
_LINES = {
    "git am": ("#000", "", "circle"),
    "git apply": ("#d55e00", "6 3", "square"),
    "computed": ("#0072b2", "", "square"),
    "remembered": ("#009e73", "2 2", "triangle"),
    "nothing to do": ("#cc79a7", "8 2 2 2", "circle"),
}
_WIDTH, _HEIGHT, _EDGE, _TOP = 420, 320, 56, 40

Times = dict[str, float]
"""CPU seconds by tool."""


def draw(by_patches: dict[int, Times], by_files: dict[int, Times]) -> str:
    """One chart of series that differ in patches, one of trees that differ in files and have as many patches each."""
    charts = _chart("patches", by_patches, 0) + _chart("files in the tree, 35 patches", by_files, _WIDTH)
    size = f'width="{2 * _WIDTH}" height="{_HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *_legend(), *charts, "</svg>", ""])


def _legend() -> list[str]:
    """Above both charts, where no line runs through it."""
    out = []
    for number, (tool, (colour, dash, mark)) in enumerate(_LINES.items()):
        left = _EDGE + number * (2 * _WIDTH - 2 * _EDGE) / len(_LINES)
        out.append(_line([(left, 18), (left + 28, 18)], colour, dash))
        out.append(_mark(left + 14, 18, colour, mark))
        out.append(f'<text x="{left + 34:.0f}" y="22">{tool}</text>')
    return out


def _line(points: list[tuple[float, float]], colour: str, dash: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>'


def _mark(x: float, y: float, colour: str, mark: str) -> str:
    if mark == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
    if mark == "square":
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="{colour}"/>'
    return f'<path d="M{x - 3.5:.1f} {y + 3:.1f}h7l-3.5 -6.5z" fill="{colour}"/>'


def _chart(title: str, values: dict[int, Times], left: int) -> list[str]:
    if not values:
        return []
    seconds = [s for times in values.values() for s in times.values()]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    first, last = math.log10(min(values)), math.log10(max(values))

    def x(value: float) -> float:
        return left + _EDGE + (math.log10(value) - first) / ((last - first) or 1) * (_WIDTH - 2 * _EDGE)

    def y(value: float) -> float:
        return _HEIGHT - _EDGE - (math.log10(value) - low) / ((high - low) or 1) * (_HEIGHT - _EDGE - _TOP)

    middle = (_HEIGHT - _EDGE + _TOP) / 2
    out = [
        f'<text x="{left + _WIDTH / 2}" y="{_HEIGHT - 14}" text-anchor="middle">{title}</text>',
        f'<text transform="translate({left + 14} {middle}) rotate(-90)" text-anchor="middle">CPU seconds</text>',
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        out.append(
            f'<line x1="{left + _EDGE}" x2="{left + _WIDTH - _EDGE}" y1="{at:.0f}" y2="{at:.0f}" stroke="#ddd"/>'
        )
        out.append(f'<text x="{left + _EDGE - 6}" y="{at + 4:.0f}" text-anchor="end">{10.0**power:g}</text>')
    out += [f'<text x="{x(v):.0f}" y="{_HEIGHT - 38}" text-anchor="middle">{v:,}</text>' for v in values]
    for tool, (colour, dash, mark) in _LINES.items():
        points = [(x(v), y(times[tool])) for v, times in values.items()]
        out += [_line(points, colour, dash), *(_mark(*point, colour, mark) for point in points)]
    return out
