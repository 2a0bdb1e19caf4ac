"""`patchctl bisect`: a fault among many patches of two upstreams, found by running a real command."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, Made, Patch, Upstream, make_distribution

MANY = 34
FAULT = 23
PARTS = {f"greeter/part{i}.py": "PART = None\n" for i in range(MANY)}
# Every third patch requires one of the other upstream, whose patches would come first or last in the order of names.
SERIES = [
    Patch(
        f"part{i}",
        {f"greeter/part{i}.py": f"PART = {'1 / 0' if i == FAULT else i}\n"},
        f"part {i}",
        requires="step@clock" if i == 3 else "",
    )
    for i in range(MANY)
]
UPSTREAM = Upstream("greeter", "v1", {"greeter/__init__.py": "", **PARTS}, SERIES)
TICKING = replace(
    CLOCK,
    patches=(
        replace(CLOCK.patches[0], requires="part1@greeter"),
        Patch("later", {"clock/later.py": "LATER = 1\n"}, "later", requires=f"part{MANY - 1}@greeter"),
    ),
)
CHECK = """
import glob, importlib, os, sys
for path in sorted(glob.glob("greeter/greeter/part*.py")):
    module = importlib.import_module("greeter." + os.path.basename(path)[:-3])
    assert os.path.samefile(module.__file__, path), (module.__file__, os.getcwd())
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_distribution(tmp_path_factory.mktemp("bisect"), (UPSTREAM, TICKING))


def bisect(made: Made, *command: str, code: int = 0, args: tuple[str, ...] = ()) -> dict[str, Any]:
    temporary = made.root.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    env = {"TMPDIR": str(temporary)}
    done = made.patchctl("bisect", "--profile", "full", "--json", *args, "--", *command, env=env, timeout=280)
    assert done.returncode == code, done.stdout + done.stderr
    assert list(temporary.iterdir()) == []  # nothing of the trees is left
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_seeded_fault_is_found_in_about_log2_runs(made: Made) -> None:
    found = bisect(made, sys.executable, "-c", CHECK)
    assert found["broken"] == [[f"part{FAULT}@greeter"]]
    assert len(found["order"]) == MANY + 2
    assert len(found["tried"]) <= 2 + math.ceil(math.log2(MANY + 2))
    assert [(t["applied"], t["outcome"]) for t in found["tried"][:2]] == [(MANY + 2, "bad"), (0, "good")]


def test_each_run_has_what_its_patches_require(made: Made, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import json, os, sys; state = json.load(open('.patchctl/state.json'))\n"
        "seen = sorted(p['feature'] for t in state['trees'].values() for p in t['patches'])\n"
        f"open({str(log)!r}, 'a').write(json.dumps(seen) + '\\n'); sys.exit('part{FAULT}' in seen)\n"
    )
    found = bisect(made, sys.executable, "-c", code)
    assert found["broken"] == [[f"part{FAULT}@greeter"]]
    runs = [set(json.loads(line)) for line in log.read_text().splitlines()]
    assert len(runs) == len(found["tried"]) > 4
    for run in runs:
        for needs, needed in (("step", "part1"), ("part3", "step"), ("later", f"part{MANY - 1}")):
            assert needs not in run or needed in run
    order = [one for unit in found["order"] for one in unit]
    assert order.index("part1@greeter") < order.index("step@clock") < order.index("part3@greeter")


def test_what_cannot_be_told_is_passed_by(made: Made) -> None:
    code = (
        "import json, sys; state = json.load(open('.patchctl/state.json'))\n"
        "n = len(state['trees']['greeter']['patches'])\n"
        "sys.exit(125 if 20 <= n <= 22 else n > 20)\n"
    )
    found = bisect(made, sys.executable, "-c", code)
    assert [u for unit in found["broken"] for u in unit] == [f"part{i}@greeter" for i in range(19, 23)]
    assert {t["outcome"] for t in found["tried"]} == {"good", "bad", "skipped"}


def test_nothing_to_find(made: Made) -> None:
    found = bisect(made, "true", code=1)
    assert (found["reason"], len(found["tried"])) == ("good", 1)
    found = bisect(made, "false", code=1)
    assert (found["reason"], len(found["tried"])) == ("base", 2)
    cannot_tell = "import json, sys; n = json.load(open('.patchctl/state.json'))['trees']['greeter']['patches']; sys.exit(1 if n else 125)"
    found = bisect(made, sys.executable, "-c", cannot_tell, code=1)
    assert (found["reason"], found["tried"][-1]["outcome"]) == ("untold", "skipped")


def test_the_users_workspace_is_not_touched(made: Made, tmp_path: Path) -> None:
    made.good("apply", "--profile", "full", "-w", str(tmp_path / "ws"))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "ws").rglob("*")}
    command = (
        "sh",
        "-c",
        "echo mine >greeter/greeter/part0.py; touch greeter/new; exit $(test -f greeter/greeter/part9.py)",
    )
    bisect(made, *command, code=1)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "ws").rglob("*")} == before


@pytest.mark.parametrize(
    ("command", "code"),
    [(("/none",), 2), (("sh", "-c", "no-such-command-here"), 2), (("sh", "-c", "kill -INT $$"), 130)],
)
def test_what_cannot_be_run(made: Made, command: tuple[str, ...], code: int) -> None:
    done = made.patchctl("bisect", "--profile", "full", "--", *command)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr


def test_patches_that_require_each_other_go_together(tmp_path: Path) -> None:
    greeter = replace(GREETER, patches=(replace(GREETER.patches[0], requires="step@clock"), *GREETER.patches[1:]))
    made = make_distribution(tmp_path, (greeter, CLOCK))
    found = bisect(made, "sh", "-c", "grep -q Helo greeter/greeter/hello.py")
    assert found["broken"] == [["typo@greeter", "step@clock"]] or found["broken"] == [["step@clock", "typo@greeter"]]
    assert os.environ.get("PATCHCTL_WORKSPACE") is None
