"""`patchctl blame` of lines and of tracebacks that a real Python printed, in workspaces, installed packages and elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, Made, git, make_distribution

OLD = "def half(number):\n    return number / 2\n"
UPSTREAM = replace(GREETER, files={**GREETER.files, "greeter/numbers.py": OLD})
# hello() is called with a number: the line that the first patch wrote raises. half("x") raises in upstream's own.
PATCHED = "from greeter.hello import shout\n\nshout(3)\n"
UNPATCHED = "from greeter.numbers import half\n\nhalf('x')\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_distribution(tmp_path_factory.mktemp("blame"), (UPSTREAM, CLOCK), lock=True)
    made.good("lock", "--pages")
    made.good("apply", "--profile", "full", "-w", str(made.root.parent / "ws"))
    return made


@pytest.fixture
def ws(made: Made) -> Path:
    return made.root.parent / "ws"


def run(code: str, *folders: Path) -> str:
    """What Python says of a program that fails."""
    path = ":".join(map(str, folders))
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "Traceback" in done.stderr, done.stderr
    return done.stderr


def blame(made: Made, *args: str, code: int = 0) -> list[dict[str, Any]]:
    done = made.patchctl("blame", *args, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    lines: list[dict[str, Any]] = json.loads(done.stdout)["lines"]
    return lines


def crashed(made: Made, tmp_path: Path, text: str, *args: str, code: int = 0) -> list[dict[str, Any]]:
    (tmp_path / "trace.txt").write_text(text)
    return [one for one in blame(made, "--traceback", str(tmp_path / "trace.txt"), *args, code=code) if one["upstream"]]


def number(file: Path, text: str) -> int:
    return 1 + next(n for n, line in enumerate(file.read_text().splitlines()) if text in line)


def test_lines_of_a_workspace(made: Made, ws: Path) -> None:
    hello = ws / "greeter/greeter/hello.py"
    wanted = {"Hello, ": "typo", "import polite": "polite", "LOUD * hello": "loud", "def main": "upstream"}
    for text, owner in wanted.items():
        (one,) = blame(made, f"{hello}:{number(hello, text)}")
        assert (one["owner"], one["upstream"], one["told_by"]) == (owner, "greeter", "workspace"), text
    (one,) = blame(made, f"{ws}/greeter/greeter/manners.py:1")
    assert (one["owner"], one["switch"], one["page"]) == (
        "polite",
        "env GREETER_POLITE=1",
        "docs/patches/greeter/v1/polite.md",
    )
    assert one["patch"] == made.patch("polite").relative_to(made.root).as_posix()
    text = made.good("blame", f"{hello}:{number(hello, 'LOUD * hello')}")
    assert (
        "loud  greeter/v1" in text
        and "switch env GREETER_LOUD=3" in text
        and "page docs/patches/greeter/v1/loud.md" in text
    )


def test_a_line_that_was_written_since(made: Made, ws: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(ws, tmp_path / "mine"))
    hello = mine / "greeter/greeter/hello.py"
    hello.write_text("# mine\n" + hello.read_text())
    (one,) = blame(made, f"{hello}:1")
    assert one["owner"] == "edit"
    (one,) = blame(made, f"{hello}:{number(hello, 'LOUD * hello')}")
    assert one["owner"] == "loud"


@pytest.mark.parametrize("place", ["workspace", "site-packages"])
def test_a_real_traceback_in_a_patched_and_in_an_unpatched_line(
    made: Made, ws: Path, tmp_path: Path, place: str
) -> None:
    site = ws / "greeter"
    if place == "site-packages":  # by its content alone: nothing of patchctl is near it
        site = tmp_path / "lib" / "python3.11" / "site-packages"
        shutil.copytree(ws / "greeter/greeter", site / "greeter")
    rows = crashed(made, tmp_path, run(PATCHED, site))
    assert [(r["function"], r["owner"]) for r in rows] == [("shout", "loud"), ("hello", "typo")]
    assert {r["told_by"] for r in rows} == {"workspace" if place == "workspace" else "content"}
    rows = crashed(made, tmp_path, run(UNPATCHED, site))
    assert [(r["function"], r["owner"], r["text"]) for r in rows] == [("half", "upstream", "return number / 2")]


def test_patches_that_are_left_out_move_what_follows(made: Made, tmp_path: Path) -> None:
    made.good("apply", "--profile", "full", "--without", "polite", "-w", str(tmp_path / "ws"))
    site = tmp_path / "site-packages"
    shutil.copytree(tmp_path / "ws/greeter/greeter", site / "greeter")
    rows = crashed(made, tmp_path, run(PATCHED, site))
    # of files that no list knows (identify knows stacks whole, and prefixes of them) it says so, instead of guessing
    assert {(r["owner"], bool(r["why"])) for r in rows} <= {("loud", True), ("typo", True)}


def test_of_a_container_that_is_not_here(made: Made, ws: Path, tmp_path: Path) -> None:
    text = run(PATCHED, ws / "greeter").replace(str(ws / "greeter"), "/opt/workspace/greeter")
    assert "/opt/workspace/greeter/greeter/hello.py" in text
    rows = crashed(made, tmp_path, text)
    assert [(r["owner"], r["told_by"]) for r in rows] == [("loud", "traceback"), ("typo", "traceback")]
    prefixed = "".join(f"(WorkerDict pid=7, ip=10.0.0.1) {line}\n" for line in text.splitlines())
    assert [r["owner"] for r in crashed(made, tmp_path, prefixed)] == ["loud", "typo"]
    base = run(PATCHED, made.origins / "greeter").replace(str(made.origins), "/opt/base")
    assert [(r["owner"], r["told_by"]) for r in crashed(made, tmp_path, base)] == [("upstream", "traceback")] * 2
    other = text.replace("return LOUD", "return  LOUD + 1 +")
    assert [r["owner"] for r in crashed(made, tmp_path, other, code=1)] == [None, None]


def test_of_two_stacks_of_an_upstream_the_one_that_has_the_lines_is_told(tmp_path: Path) -> None:
    """A container and an edited file of the newer release; a file that both releases have."""
    made = make_distribution(tmp_path, (UPSTREAM, CLOCK), lock=True)
    origin = made.origins / "greeter"
    hello = origin / "greeter/hello.py"
    hello.write_text("# later\n" + hello.read_text())
    git(origin, "commit", "--quiet", "--all", "--message", "Later")
    git(origin, "tag", "v2")
    done = made.patchctl("rebase", "greeter/v1", "--to", "v2", "--mirror", f"greeter={origin}")
    assert done.returncode == 20, done.stderr  # all arrived, nothing is proven
    made.edit("manifests/profiles/full.yaml", "greeter: v1", "greeter: v2")
    made.good("lock")
    made.good("apply", "--profile", "full", "-w", str(tmp_path / "ws"))
    tree = tmp_path / "ws/greeter"
    text = run(PATCHED, tree).replace(str(tree), "/opt/workspace/greeter")
    rows = crashed(made, tmp_path, text)
    assert [(r["owner"], r["stack"], r["told_by"]) for r in rows] == [
        ("loud", "v2", "traceback"),
        ("typo", "v2", "traceback"),
    ]
    strange = text.replace("return LOUD", "return  LOUD + 1 +")
    assert [(r["owner"], r["stack"]) for r in crashed(made, tmp_path, strange, code=1)] == [(None, None)] * 2
    edited = tmp_path / "site/greeter/hello.py"
    edited.parent.mkdir(parents=True)
    edited.write_text("# mine\n" + (tree / "greeter/hello.py").read_text())
    rows = [blame(made, f"{edited}:{line}")[0] for line in (1, 2, number(edited, "Hello, "))]
    assert [(r["owner"], r["stack"]) for r in rows] == [("edit", "v2"), ("upstream", "v2"), ("typo", "v2")]
    shutil.copy(tree / "greeter/numbers.py", edited.parent)
    (one,) = blame(made, f"{edited.parent}/numbers.py:2")
    assert (one["owner"], one["stack"], one["why"]) == ("upstream", "v1", "it can be of greeter/v2 as well")


def test_of_an_into_checkout_and_from_standard_input(made: Made, tmp_path: Path) -> None:
    checkout = tmp_path / "mine"
    shutil.copytree(made.origins / "greeter", checkout)
    ws = tmp_path / "ws"
    made.good("apply", "--profile", "full", "-w", str(ws), "--in-place", f"greeter={checkout}")
    place = f"{checkout}/greeter/hello.py:{number(checkout / 'greeter/hello.py', 'LOUD * hello')}"
    assert blame(made, place, "-w", str(ws))[0]["told_by"] == "workspace"
    assert blame(made, place)[0]["told_by"] == "content"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ((), 2, "FILE:LINE"),
        (("x.py",), 2, "is not FILE:LINE"),
        (("x.py:0",), 2, "is not FILE:LINE"),
        (("x.py:1", "--traceback", "-"), 2, "name one line"),
        (("--traceback", "/none"), 2, "cannot be read"),
        (("--traceback", "/dev/null"), 2, "no Python traceback"),
    ],
)
def test_what_is_refused(made: Made, args: tuple[str, ...], code: int, said: str) -> None:
    done = made.patchctl("blame", *args)
    assert done.returncode == code and said in done.stderr and "Traceback (" not in done.stderr


def test_a_line_of_nobody_and_a_line_too_far(made: Made, ws: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("x = 1\n")
    (one,) = blame(made, f"{tmp_path}/own.py:1", code=1)
    assert (one["upstream"], one["owner"]) == (None, None)
    (one,) = blame(made, f"{ws}/greeter/greeter/hello.py:999", code=1)
    assert one["why"] == "the file has no such line"


@pytest.mark.parametrize(
    "prefix",
    [
        "(Server pid=9) (Worker_TP1 pid=8) ERROR 01-02 03:04:05 [executor.py:932] ",
        "2026-01-02T03:04:05Z [rank0]: ",
        "> ",
    ],
)
def test_prefixes_of_engines_and_collectors(made: Made, ws: Path, tmp_path: Path, prefix: str) -> None:
    text = run(PATCHED, ws / "greeter").replace(str(ws / "greeter"), "/opt/workspace/greeter")
    rows = crashed(made, tmp_path, "".join(f"{prefix}{line}\n" for line in text.splitlines()))
    assert [(r["owner"], r["told_by"]) for r in rows] == [("loud", "traceback"), ("typo", "traceback")]


def test_equal_lines_of_many_ranks_are_one_answer(made: Made, ws: Path, tmp_path: Path) -> None:
    text = run(PATCHED, ws / "greeter").replace(str(ws / "greeter"), "/opt/workspace/greeter")
    rows = crashed(
        made, tmp_path, "".join(f"[rank{rank}]: {line}\n" for rank in range(32) for line in text.splitlines())
    )
    assert [(r["owner"], r["count"]) for r in rows] == [("loud", 32), ("typo", 32)]


def test_a_traceback_without_code_is_not_called_another_file(made: Made, ws: Path, tmp_path: Path) -> None:
    text = run(PATCHED, ws / "greeter").replace(str(ws / "greeter"), "/opt/workspace/greeter")
    bare = "".join(line + "\n" for line in text.splitlines() if not line.startswith("    "))
    assert {"shows no code" in r["why"] for r in crashed(made, tmp_path, bare, code=1)} == {True}


@pytest.mark.parametrize("name", ["x\0y", "x" * 300, "x/" * 3000 + "y", "pipe", ".", "folder"])
def test_no_name_in_a_traceback_is_a_fault_or_waited_for(made: Made, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder" / "greeter" / "hello.py").mkdir(parents=True)
    for file in (f"{tmp_path}/{name}/greeter/hello.py", f"{tmp_path}/{name}"):
        text = (
            f'  File "{file}", line 1, in f\n    x\n  File "{file}", line 0, in f\n  File "{file}", line {"9" * 5000}\n'
        )
        (tmp_path / "trace.txt").write_text(text)
        done = made.patchctl("blame", "--traceback", str(tmp_path / "trace.txt"), timeout=30)
        assert done.returncode == 1 and "Traceback (" not in done.stderr, done.stderr


def test_a_named_pipe_with_the_name_of_a_file_of_ours(made: Made, tmp_path: Path) -> None:
    (tmp_path / "greeter").mkdir()
    os.mkfifo(tmp_path / "greeter/hello.py")
    done = made.patchctl("blame", f"{tmp_path}/greeter/hello.py:3", timeout=30)
    assert done.returncode == 1
    for line in (
        ("blame", "--traceback"),
        ("rebase", "--plan"),
        ("drift", "greeter", "--baseline"),
        ("report", "--drift"),
    ):
        done = made.patchctl(*line, str(tmp_path / "greeter/hello.py"), timeout=30)
        assert done.returncode == 2 and "named pipe" in done.stderr, line


def test_a_broken_state_above_a_file_ends_nothing(made: Made, ws: Path, tmp_path: Path) -> None:
    (tmp_path / ".patchctl").mkdir()
    (tmp_path / ".patchctl/state.json").write_text("{")
    shutil.copytree(ws / "greeter/greeter", tmp_path / "site/greeter")
    assert [r["told_by"] for r in crashed(made, tmp_path, run(PATCHED, tmp_path / "site"))] == ["content"] * 2


def test_a_workspace_that_is_named_has_the_lines_of_a_container(made: Made, ws: Path, tmp_path: Path) -> None:
    """Of a traceback without code, which nothing else can tell; where code is shown, it has to be that."""
    text = run(PATCHED, ws / "greeter").replace(str(ws / "greeter"), "/opt/ws/greeter")
    bare = "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("    "))
    said = crashed(made, tmp_path, bare, code=1)
    assert [r["owner"] for r in said] == [None, None] and "--workspace" in said[0]["why"]
    rows = crashed(made, tmp_path, bare, "-w", str(ws))
    assert [(r["owner"], r["told_by"]) for r in rows] == [("loud", "workspace"), ("typo", "workspace")]
    other = text.replace("return LOUD", "return  LOUD + 1 +")
    assert [r["owner"] for r in crashed(made, tmp_path, other, "-w", str(ws), code=1)] == [None, "typo"]


def test_a_traceback_in_a_line_of_json_or_repr(made: Made, ws: Path, tmp_path: Path) -> None:
    """With a backslash in the code that it shows."""
    text = run(PATCHED, ws / "greeter").replace("return LOUD", 'print(f"\\nLOUD \\u00e9") or LOUD')
    for line in (json.dumps({"exc": text}), repr(text)):
        rows = crashed(made, tmp_path, line)
        assert 'print(f"\\nLOUD \\u00e9") or LOUD' in rows[0]["said"], rows
