"""The picture of dependencies: layers by what is required, no node on another, the same picture each time, circles end."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from patchctl.report.page_graph import Layout

NAMES = st.sampled_from("abcdefghijkl")
EDGES = st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=4), min_size=1).map(
    lambda edges: {
        n: [o for o in edges.get(n, []) if o != n] for n in {*edges, *(o for all_ in edges.values() for o in all_)}
    }
)


def test_what_is_required_stands_left() -> None:
    layout = Layout({"a": [], "b": ["a"], "c": ["b", "a"], "d": []})
    assert layout.depth == {"a": 0, "b": 1, "c": 2, "d": 0}
    assert [("a", 0), ("a c", 1), ("c", 2)] in layout.lines  # past b, by a place in its layer


@settings(max_examples=200, deadline=None)
@given(EDGES)
def test_no_node_stands_on_another(edges: dict[str, list[str]]) -> None:
    layout = Layout(edges)
    assert layout.y.keys() == layout.neighbours.keys() and {*edges} <= {name for name, _ in layout.y}
    for layer in layout.layers:
        places = sorted((layout.y[node], layout.height(node)) for node in layer if node[0] in edges)
        assert all(b - a >= (h + g) / 2 for (a, h), (b, g) in itertools.pairwise(places))
    assert min(layout.y[n] - layout.height(n) / 2 for n in layout.y) >= -1e-6
    assert Layout(edges).y == layout.y


def test_a_long_way_and_a_circle_end() -> None:
    chain = {f"n{i:04}": [f"n{i - 1:04}"] if i else [] for i in range(1500)}
    assert Layout(chain).depth["n1499"] == 1499
    assert {*Layout({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}).depth.values()} == {0, 1, 2, 3}
