"""What features require of each other, drawn: left what is needed, right what needs it.

Layers by the longest way, places for lines that pass a layer, and some sweeps that bring each node near its neighbours
(Sugiyama's method). Tens of nodes; the same distribution gives the same picture.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

from patchctl.report.markup import Markup, join, tag, text
from patchctl.report.page_names import Names, Row, keys, scrolling, section, table
from patchctl.terminal.text import counted, visible_line

_HEIGHT, _GAP, _BETWEEN, _MARGIN = 38, 12, 72, 8
_CHARACTER, _LONGEST, _SWEEPS = 7.3, 30, 8
_Node = tuple[str, int]
"""A patch's name with its own layer; a line's place in a layer that it passes has that of the layer."""


class Layout:
    """Layers of nodes, and for each node the middle of its left edge."""

    def __init__(self, edges: Mapping[str, Sequence[str]]) -> None:
        """`edges` are, for every node, those that it requires."""
        self.edges = edges
        self.depth = _depths(edges)
        self.layers: list[list[_Node]] = [[] for _ in range(max(self.depth.values(), default=-1) + 1)]
        self.neighbours: dict[_Node, list[_Node]] = {}
        for name in sorted(edges):
            self._node((name, self.depth[name]))
        self.lines = [self._line(one, other) for other in sorted(edges) for one in edges[other]]
        self.y: dict[_Node, float] = {}
        self._place()

    def _node(self, node: _Node) -> None:
        if node not in self.neighbours:
            self.neighbours[node] = []
            self.layers[node[1]].append(node)

    def _line(self, one: str, other: str) -> list[_Node]:
        """From what is required to what requires it, by a place in every layer between."""
        first, last = (one, self.depth[one]), (other, self.depth[other])
        way = [first, *((f"{one} {other}", layer) for layer in range(first[1] + 1, last[1])), last]
        for left, right in itertools.pairwise(way):
            for node in (left, right):
                self._node(node)
            self.neighbours[left].append(right)
            self.neighbours[right].append(left)
        return way

    def _place(self) -> None:
        """Each part that hangs together for itself, the largest first, one below the other."""
        bottom = 0.0
        for part in self._parts():
            layers = [[node for node in layer if node in part] for layer in self.layers]
            for layer in layers:
                self._stack(layer, dict.fromkeys(layer, 0.0))
            for sweep in range(_SWEEPS):
                for layer in layers if sweep % 2 else reversed(layers):
                    self._stack(layer, {node: self._middle(node) for node in layer})
            top = min(self.y[node] - self.height(node) / 2 for node in part)
            self.y |= {node: self.y[node] - top + bottom for node in part}
            bottom = max(self.y[node] + self.height(node) / 2 for node in part) + 2 * _GAP
        self.bottom = bottom - 2 * _GAP

    def _parts(self) -> list[set[_Node]]:
        parts: list[set[_Node]] = []
        for node in self.neighbours:
            if not any(node in part for part in parts):
                part, ahead = {node}, [node]
                while ahead:
                    near = {*self.neighbours[ahead.pop()]} - part
                    part |= near
                    ahead += near
                parts.append(part)
        return sorted(parts, key=lambda part: (-len(part), min(part)))

    def _middle(self, node: _Node) -> float:
        near = [self.y[n] for n in self.neighbours[node]]
        return sum(near) / len(near) if near else self.y[node]

    def _stack(self, layer: list[_Node], wanted: Mapping[_Node, float]) -> None:
        """One below the other, in the order of the places that they want, and as near to these as that allows."""
        layer.sort(key=lambda node: (wanted[node], node))
        y, down = {}, float("-inf")
        for above, node in zip([None, *layer], layer, strict=False):
            apart = _GAP + (self.height(node) + (self.height(above) if above else 0)) / 2
            y[node] = down = max(wanted[node], down + apart)
        off = sum(y[n] - wanted[n] for n in layer) / max(1, len(layer))
        self.y |= {node: place - off for node, place in y.items()}

    def height(self, node: _Node) -> int:
        return _HEIGHT if node[0] in self.edges else 0


def _depths(edges: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """One more than the deepest that each requires. A circle, which no profile can apply, is parted somewhere."""
    open_ = {name: list(required) for name, required in edges.items()}
    depth: dict[str, int] = {}
    while len(depth) < len(open_):
        try:
            for name in graphlib.TopologicalSorter(open_).static_order():
                depth[name] = 1 + max((depth[one] for one in open_[name]), default=-1)
        except graphlib.CycleError as error:
            required, name = error.args[1][:2]
            open_[name].remove(required)
    return depth


def graph(names: Names) -> Markup:
    """The picture, and the same as a table."""
    edges = _edges(names)
    alone = len(names.features) - len({name.partition("@")[0] for name in edges})
    if not edges:
        return section("graph", "Dependencies", tag("p", "No feature here requires another.", class_="notice"))
    hint = f"Lines lead from a feature, left, to those that require it, right. Standing alone, and not drawn: {counted(alone, 'feature')}."
    rows = []
    for name, required in edges.items():
        feature, _, place = name.partition("@")
        cells = (names.link(name, feature), place, names.links(required) if required else "nothing")
        rows.append(Row(cells, names.named(name)))
    as_table = table("What features require", ("Feature", "Upstream", "Requires"), rows)
    return section(
        "graph",
        "Dependencies",
        tag("p", hint, class_="quiet"),
        scrolling("Dependencies, as a picture", _svg(names, Layout(edges)), "picture"),
        tag("details", tag("summary", "The same as a table"), as_table, class_="more"),
    )


def _edges(names: Names) -> dict[str, list[str]]:
    """Patches that require others or are required, by their names; of what the page has."""
    edges: dict[str, list[str]] = {}
    for name, patch in zip(names.names, names.seen.patches, strict=True):
        row = patch.row
        for required in {n: None for need in patch.requires for n in names.beside(need, row.upstream, row.stack)}:
            other = names.names[required]
            if other != name:
                edges.setdefault(name, []).append(other)
                edges.setdefault(other, [])
    return edges


def _svg(names: Names, layout: Layout) -> Markup:
    columns = [[_label(name) for name, _ in layer if name in layout.edges] for layer in layout.layers]
    widths = [24 + _CHARACTER * max(map(len, labels), default=0) for labels in columns]
    lefts = [_MARGIN + sum(widths[:n]) + _BETWEEN * n for n in range(len(widths))]
    top = float(_MARGIN)
    lines = (tag("path", d=_path(way, lefts, widths, top, layout), data_p=_ends(names, way)) for way in layout.lines)
    nodes = [
        _node(names, node[0], lefts[depth], top + layout.y[node], widths[depth])
        for depth, layer in enumerate(layout.layers)
        for node in layer
        if node[0] in layout.edges
    ]
    width = lefts[-1] + widths[-1] + _MARGIN
    height = layout.bottom + 2 * _MARGIN
    title = tag("title", "Dependencies of features", id="graph-title")
    drawn = tag("g", *lines, class_="lines", aria_hidden="true")
    return tag(
        "svg",
        title,
        drawn,
        *nodes,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="group",
        aria_labelledby="graph-title",
    )


def _label(name: str) -> str:
    feature = visible_line(name.partition("@")[0])
    return feature if len(feature) <= _LONGEST else feature[: _LONGEST - 1] + "…"


def _ends(names: Names, way: Sequence[_Node]) -> str:
    return keys([*names.named(way[0][0]), *names.named(way[-1][0])])


def _path(way: Sequence[_Node], lefts: Sequence[float], widths: Sequence[float], top: float, layout: Layout) -> str:
    """Level where it leaves, passes and arrives."""
    return " ".join(_steps(way, lefts, widths, top, layout))


def _steps(
    way: Sequence[_Node], lefts: Sequence[float], widths: Sequence[float], top: float, layout: Layout
) -> Iterator[str]:
    first = way[0]
    x, y = lefts[first[1]] + widths[first[1]], top + layout.y[first]
    yield f"M{x:.1f} {y:.1f}"
    for node in way[1:]:
        left, down = lefts[node[1]], top + layout.y[node]
        middle = (x + left) / 2
        yield f"C{middle:.1f} {y:.1f} {middle:.1f} {down:.1f} {left:.1f} {down:.1f}"
        x, y = left, down
        if node is not way[-1]:
            x += widths[node[1]]
            yield f"H{x:.1f}"


def _node(names: Names, name: str, left: float, middle: float, width: float) -> Markup:
    feature, _, place = name.partition("@")
    box = tag("rect", x=f"{left:.1f}", y=f"{middle - _HEIGHT / 2:.1f}", width=f"{width:.1f}", height=_HEIGHT, rx=4)
    label = tag("text", _label(name), x=f"{left + 12:.1f}", y=f"{middle - 2:.1f}")
    below = tag("text", place, x=f"{left + 12:.1f}", y=f"{middle + 12:.1f}", class_="sub")
    title = tag("title", join([text(feature), " on ", text(place)]))
    return tag(
        "a", title, box, label, below, href=f"#{names.place(name)}", class_="node", data_p=keys(names.named(name))
    )
