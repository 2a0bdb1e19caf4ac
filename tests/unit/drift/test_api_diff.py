"""Which upstream names a source uses, and which of them are not what they were."""

from __future__ import annotations

import pytest

from patchctl.drift.api_diff import PatchedSource, changed_names, written_lines
from patchctl.patch.parse import parse_diff

TREE = {
    "pkg/__init__.py": "from pkg.core import run\n",
    "pkg/core.py": (
        "LIMIT = 3\n\n\ndef run(a, b=1, *, c=None):\n    return a\n\n\n"
        "class Base:\n    def __init__(self, name):\n        self.name = name\n\n    def start(self, now):\n        return now\n\n"
        "    @property\n    def size(self):\n        return 1\n"
    ),
    "pkg/config.py": "from dataclasses import dataclass\n\n\n@dataclass\nclass Config:\n    steps: int\n    rate: float = 1.0\n",
    "pkg/sub/__init__.py": "from .worker import *\n",
    "pkg/sub/worker.py": "from ..core import Base\n\n\nclass Worker(Base):\n    def stop(self):\n        return self.start(1)\n",
}


def changed(
    text: str, edits: dict[str, tuple[str, str] | None], lines: set[int] | None = None, path: str = "pkg/own.py"
):  # type: ignore[no-untyped-def]
    """(name, now) of what changes for a source when the tree is edited; None takes a file away."""
    new: dict[str, str] = dict(TREE)
    for name, edit in edits.items():
        if edit is None:
            del new[name]
        else:
            assert edit[0] in new[name]
            new[name] = new[name].replace(*edit)

    def reader(tree: dict[str, str]):  # type: ignore[no-untyped-def]
        return lambda path: tree[path].encode() if path in tree else None

    source = PatchedSource(path, text.encode(), frozenset(lines) if lines is not None else None)
    assert changed_names([source], reader(TREE), reader(TREE)) == []
    return [(c.name, c.now) for c in changed_names([source], reader(TREE), reader(new))]


RUN = ("def run(a, b=1, *, c=None)", "def run(a, *, c=None)")
MORE = {"pkg/config.py": ("steps: int\n", "steps: int\n    more: int\n")}
ANNOTATED = {
    "pkg/core.py": ("def run(a, b=1, *, c=None):", "def run(a: int, b: int = 1, *, c: str | None = None) -> int:")
}
START = ("def start(self, now)", "def start(self, now, later)")


@pytest.mark.parametrize(
    ("text", "edits", "wanted"),
    [
        ("from pkg.core import run\nrun(1)\n", {"pkg/core.py": RUN}, [("pkg.core.run", "def run(a, *, c=None)")]),
        ("import pkg.core\npkg.core.run(1)\n", {"pkg/core.py": RUN}, [("pkg.core.run", "def run(a, *, c=None)")]),
        ("import pkg.core as core\ncore.run(1)\n", {"pkg/core.py": RUN}, [("pkg.core.run", "def run(a, *, c=None)")]),
        ("from pkg import run as go\ngo(1)\n", {"pkg/core.py": RUN}, [("pkg.core.run", "def run(a, *, c=None)")]),
        ("from . import core\ncore.run(1)\n", {"pkg/core.py": RUN}, [("pkg.core.run", "def run(a, *, c=None)")]),
        (
            "def f():\n    from .core import run\n    return run\n",
            {"pkg/core.py": ("def run", "def go")},
            [("pkg.core.run", None)],
        ),
        ("from pkg.core import run\n", {"pkg/core.py": None}, [("pkg.core.run", None)]),
        ("from pkg.core import LIMIT\n", {"pkg/core.py": ("LIMIT", "LIMITS")}, [("pkg.core.LIMIT", None)]),
        # methods: through bases, self, super, variables and annotations; of classes by way of a star
        (
            "from pkg.sub import Worker\nworker = Worker('x')\nworker.start(1)\n",
            {"pkg/core.py": START},
            [("pkg.core.Base.start", "def start(self, now, later)")],
        ),
        (
            "from pkg.core import Base\n\n\nclass Mine(Base):\n    def go(self):\n        return self.start(1)\n",
            {"pkg/core.py": START},
            [("pkg.core.Base.start", "def start(self, now, later)")],
        ),
        (
            "from pkg.core import Base\n\n\nclass Mine(Base):\n    def stop(self):\n        return super().start(1)\n",
            {"pkg/core.py": START},
            [("pkg.core.Base.start", "def start(self, now, later)")],
        ),
        (  # overrides it: upstream calls it in another way now
            "from pkg.core import Base\n\n\nclass Mine(Base):\n    def start(self, now):\n        return now\n",
            {"pkg/core.py": START},
            [("pkg.core.Base.start", "def start(self, now, later)")],
        ),
        (
            "from pkg.sub.worker import Worker\ndef f(w: Worker | None):\n    return w.start(1)\n",
            {"pkg/core.py": START},
            [("pkg.core.Base.start", "def start(self, now, later)")],
        ),
        (
            "from pkg.sub.worker import Worker\nclass A:\n    def __init__(self, w: Worker):\n        self.w = w\n"
            "    def f(self):\n        return self.w.stop()\n",
            {"pkg/sub/worker.py": ("def stop(self)", "def stop(self, hard)")},
            [("pkg.sub.worker.Worker.stop", "def stop(self, hard)")],
        ),
        (
            "from pkg.core import Base\ndef f(b: Base):\n    return b.size, b.name\n",
            {"pkg/core.py": ("    @property\n", "")},
            [("pkg.core.Base.size", "def size(self)")],
        ),
        (
            "from pkg.core import Base\ndef f(b: Base):\n    return b.name\n",
            {"pkg/core.py": ("self.name", "self.title")},
            [("pkg.core.Base.name", None)],
        ),
        # fields of a configuration, and what it takes to make one; a class that nobody makes may take more
        (
            "from pkg.config import Config\ndef f(c: Config):\n    return c.rate\n",
            {"pkg/config.py": ("    rate: float = 1.0\n", "")},
            [("pkg.config.Config.rate", None)],
        ),
        (
            "from pkg.config import Config\nConfig(1)\n",
            MORE,
            [("pkg.config.Config", "class Config(steps, more, rate=...)")],
        ),
        ("from pkg.config import Config\ndef f(c: Config):\n    return c.steps\n", MORE, []),
        (
            "from pkg.core import Base\nBase('x')\n",
            {"pkg/core.py": ("def __init__(self, name)", "def __init__(self)")},
            [("pkg.core.Base", "class Base(self)")],
        ),
        # what is no change: annotations, bodies, names of others
        ("from pkg.core import run\nrun(1)\n", ANNOTATED, []),
        ("from pkg.core import run\nrun(1)\n", {"pkg/core.py": ("return a", "return a + 1")}, []),
        ("from numpy import run\nrun(1)\nopen('x')\n", {"pkg/core.py": RUN}, []),
        ("this is no Python\n", {"pkg/core.py": RUN}, []),
    ],
)
def test_what_changes(
    text: str, edits: dict[str, tuple[str, str] | None], wanted: list[tuple[str, str | None]]
) -> None:
    assert changed(text, edits) == wanted


def test_of_a_patched_file_only_the_patch_s_own_lines() -> None:
    text = "from pkg.core import run, LIMIT\nrun(LIMIT)\nrun(2)\n"
    edits: dict[str, tuple[str, str] | None] = {"pkg/core.py": RUN}
    assert changed(text, edits, {3}) != []
    assert changed(text, {"pkg/core.py": ("LIMIT = 3", "LIMIT_ = 3")}, {3}) == []


def test_self_in_an_upstream_class_that_a_patch_changes() -> None:
    text = TREE["pkg/sub/worker.py"] + "\n    def again(self):\n        return self.start(2)\n"
    found = changed(text, {"pkg/core.py": START}, {9}, "pkg/sub/worker.py")
    assert found == [("pkg.core.Base.start", "def start(self, now, later)")]


def test_written_lines() -> None:
    diff = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,4 @@\n a\n-b\n+B\n+C\n c\n@@ -9 +10,2 @@\n i\n+j\n"
    (change,) = parse_diff(diff.split(b"\n")[:-1], "x")
    assert written_lines(change.hunks) == {2, 3, 11}
