"""Value classes behave as dataclasses do, and become them when somebody asks."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from patchctl import values


def classes(module: Any) -> tuple[type, type, type]:
    """The same three classes, by `dataclasses` and by us."""

    @module.dataclass(frozen=True)
    class Point:
        x: int
        y: int = 2
        names: list[str] = module.field(default_factory=list)

    @module.dataclass(frozen=True)
    class Deep(Point):
        inner: Any = None

    @module.dataclass
    class Open:
        x: int
        z: tuple[int, ...] = ()

    return Point, Deep, Open


OURS, THEIRS = classes(values), classes(dataclasses)
CALLS: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
    (0, (1,), {}),
    (0, (1, 3, ["a"]), {}),
    (0, (), {"x": 1, "y": 5}),
    (0, (), {}),
    (0, (1,), {"x": 1}),
    (0, (1, 2, [], 4), {}),
    (0, (1,), {"w": 1}),
    (1, (1,), {"inner": {"a": (1, 2)}}),
    (2, (1, (2,)), {}),
    (2, (), {"z": ()}),
]


@pytest.mark.parametrize(("which", "args", "given"), CALLS)
def test_both_take_and_refuse_the_same(which: int, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    try:
        expected = THEIRS[which](*args, **given)
    except TypeError:
        with pytest.raises(TypeError):
            OURS[which](*args, **given)
        return
    ours = OURS[which](*args, **given)
    assert repr(ours).partition("(")[2] == repr(expected).partition("(")[2]
    assert vars(ours) == vars(expected)
    assert values.asdict(ours) == dataclasses.asdict(expected)
    assert vars(values.replace(ours, x=9)) == vars(dataclasses.replace(expected, x=9))
    assert ours == OURS[which](*args, **given) and ours != values.replace(ours, x=9) and ours != expected


def test_a_default_is_made_anew_and_frozen_is_frozen() -> None:
    point, _, changeable = classes(values)
    one, other = point(1), point(1)
    assert one.names == [] and one.names is not other.names
    for change in (lambda: setattr(one, "x", 2), lambda: delattr(one, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert hash(point(1, 2, ())) == hash(point(1, 2, ()))
    value = changeable(1)
    value.x = 2
    assert value == changeable(2)
    with pytest.raises(TypeError):
        hash(value)


def test_a_class_becomes_a_dataclass_when_it_is_asked_for_and_its_values_stay() -> None:
    point, deep, _ = classes(values)
    before = deep(1, 2, ["a"], point(3))
    expected = {"x": 1, "y": 2, "names": ["a"], "inner": {"x": 3, "y": 2, "names": []}}
    assert values.asdict(before) == expected
    assert dataclasses.is_dataclass(deep) and [f.name for f in dataclasses.fields(deep)] == ["x", "y", "names", "inner"]
    assert dataclasses.asdict(before) == expected
    assert before == deep(1, 2, ["a"], point(3)) and values.replace(before, x=4).x == 4
    assert values.field_names(deep) == ("x", "y", "names", "inner")
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.x = 2


def test_what_a_run_of_apply_imports() -> None:
    """Each of these costs more than a git process; a run needs none."""
    modules = "patchctl.stack.plan, patchctl.workspace.apply, patchctl.workspace.standing, patchctl.check.workspace"
    code = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    loaded = set(done.stdout.split())
    assert "patchctl.workspace.apply" in loaded
    assert not loaded & {"dataclasses", "inspect", "pydantic", "yaml", "click"}
