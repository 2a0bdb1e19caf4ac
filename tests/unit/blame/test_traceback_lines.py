"""Tracebacks as launchers, engines and collectors of logs print them. The forms are those of public issue threads, their words made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from patchctl.blame.blame import SourceLine, frames

FRAMES = [
    SourceLine("/there/verl/base.py", 12, "func", "return getattr(self.worker, name)(*args)"),
    SourceLine("/there/vllm/executor.py", 932, "run_worker", "(tokens, times) = self.step(batch)"),
]
PREFIXES = [
    "",
    "(TaskRunner pid=7) ",
    "(WorkerDict pid=7, ip=10.0.0.1) ",
    "(pid=7) ",
    "(pid=7, ip=10.0.0.1) ",
    "\x1b[36m(TaskRunner pid=7)\x1b[0m ",
    "\x1b[1;36m(WorkerDict pid=7, ip=10.0.0.1)\x1b[0;0m ",
    "(EngineCore_DP0 pid=8) ",
    "(Server pid=9) (Worker_TP1 pid=8) ",
    "(Server pid=9) (EngineCore_DP0 pid=8) (Worker_TP1 pid=7) ",
    "ERROR 01-02 03:04:05 [executor.py:932] ",
    "(Worker_TP1 pid=8) ERROR 01-02 03:04:05 [executor.py:932] ",
    "(Server pid=9) (Worker_TP1 pid=8) ERROR 01-02 03:04:05 [executor.py:932] ",
    "(Worker_TP0_EP0 pid=8) ERROR 01-02 03:04:05 [v1/executor/multiproc_executor.py:932] ",
    "(APIServer pid=1) INFO 01-02 03:04:05 [__init__.py:1] ",
    "WARNING 01-02 03:04:05 [core.py:1] ",
    "ERROR 01-02 03:04:05 executor.py:932] ",
    "ERROR:executor.py:932: ",
    "[rank0]: ",
    "[rank12]:",
    "[default0]:",
    "[default3]: ",
    "[0]: ",
    "[trainer/0] ",
    "[1,3]<stderr>: "[:5] + ": ",
    "[2026-01-02 03:04:05,678] [ERROR] [executor.py:932:run] ",
    "[2026-01-02 03:04:05] ",
    "2026-01-02 03:04:05,678 ERROR ",
    "2026-01-02 03:04:05,678\tERROR executor.py:932 -- "[:23] + " ERROR executor.py:932] ",
    "2026-01-02T03:04:05.678Z ",
    "2026-01-02T03:04:05.678901234Z stderr F ",
    "2026-01-02T03:04:05+08:00 [rank3]: ",
    "2026-01-02T03:04:05.678Z (Server pid=9) (Worker_TP1 pid=8) ",
    "03:04:05 ",
    "03:04:05.678 [rank1]: ",
    "Jan  2 03:04:05 ",
    "E0102 03:04:05.678901 7 torch/distributed/elastic/multiprocessing/api.py:874] ",
    "I0102 03:04:05.678901 140234 run.py:9] [rank0]: ",
    "trainer-1  | ",
    "trainer-1  | (TaskRunner pid=7) ",
    "train[123]: ",
    "Jan  2 03:04:05 node-1 train[123]: ",
    "0: ",
    "12: [rank3]: ",
    "[1,3]<stderr>:",
    "node-1: ",
    "+ trainer-0 › main ",
    "[36m(TaskRunner pid=7)[0m ",
    "> ",
    "> > ",
    "> (TaskRunner pid=7) ",
    "| ",
    "  | ",
    "    | ",
    "  | (TaskRunner pid=7) ",
    "(TaskRunner pid=7)   | ",
    "CRITICAL: ",
    "[rank0]: ERROR 01-02 03:04:05 [executor.py:932] ",
    "(TaskRunner pid=7) [rank0]: ",
]


def traceback(prefix: str, *, code: bool = True, marks: bool = False) -> str:
    lines = ["Traceback (most recent call last):"]
    for frame in FRAMES:
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        lines += [f"    {frame.said}"] * code + ["           ^^^^^^^^^^"] * marks
    return "".join(f"{prefix}{line}\n" for line in [*lines, "RuntimeError: no"])


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_frames_are_those_that_python_printed(prefix: str) -> None:
    assert frames(traceback(prefix)) == FRAMES
    assert frames(traceback(prefix, marks=True)) == FRAMES


@pytest.mark.parametrize("prefix", PREFIXES)
def test_of_a_frame_without_code_nothing_is_said(prefix: str) -> None:
    found = frames(traceback(prefix, code=False))
    assert [(f.line, f.said) for f in found] == [(12, None), (932, None)]


def test_what_ray_did_not_repeat() -> None:
    more = " [repeated 7x across cluster] (Ray deduplicates logs by default.)"
    text = "".join(line + more + "\n" for line in traceback("(WorkerDict pid=7) ").splitlines())
    assert frames(text) == FRAMES


def test_prefixes_that_change_from_line_to_line() -> None:
    lines = traceback("").splitlines()
    text = "".join(
        f"(Worker_TP1 pid=8) ERROR 01-02 03:04:{n:02} [executor.py:{n}] {line}\n" for n, line in enumerate(lines)
    )
    assert frames(text) == FRAMES


def test_lines_of_processes_that_fail_in_lockstep() -> None:
    one, other = (traceback(f"(WorkerDict pid={pid}) ").splitlines() for pid in (7, 8))
    text = "".join(f"{line}\n" for pair in zip(one, other, strict=True) for line in pair)
    assert frames(text) == [frame for frame in FRAMES for _ in (7, 8)]


@pytest.mark.parametrize("write", [repr, json.dumps], ids=["repr", "json"])
def test_a_traceback_that_was_made_one_line(write: Callable[[str], str]) -> None:
    assert frames(f"ERROR task failed: {write(traceback(''))}\n") == FRAMES


def test_dockers_own_files() -> None:
    lines = traceback("[rank0]: ").splitlines(keepends=True)
    assert frames("".join(json.dumps({"log": line, "stream": "stderr"}) + "\n" for line in lines)) == FRAMES


def test_an_exception_group() -> None:
    text = """  + Exception Group Traceback (most recent call last):
  |   File "/there/a.py", line 1, in <module>
  |     raise ExceptionGroup("two", errors)
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/there/b.py", line 2, in f
    |     raise ValueError(1)
    | ValueError: 1
    +---------------- 2 ----------------
"""
    assert frames(text) == [
        SourceLine("/there/a.py", 1, "<module>", 'raise ExceptionGroup("two", errors)'),
        SourceLine("/there/b.py", 2, "f", "raise ValueError(1)"),
    ]


@pytest.mark.parametrize("prefix", ["", "node-1: "])
def test_dumps_of_processes_that_hang(prefix: str) -> None:
    dumps = {
        "faulthandler": """Thread 0x00007f01765dc6c0 (most recent call first):
  File "/there/verl/base.py", line 12 in func
  File "/there/vllm/executor.py", line 932 in run_worker""",
        "pystack": """Traceback for thread 7 (python) [] (most recent call last):
    (C) File "./Modules/_threadmodule.c", line 1124, in thread_run (/usr/lib/libpython3.11.so.1.0)
    (Python) File "/there/verl/base.py", line 12, in func
        return getattr(self.worker, name)(*args)
    (Python) File "/there/vllm/executor.py", line 932, in run_worker
        (tokens, times) = self.step(batch)
    (C) File "./Modules/timemodule.c", line 2159, in pysleep (inlined) (/usr/lib/libpython3.11.so.1.0)""",
        "py-spy": """Thread 7 (idle): "MainThread"
    func (/there/verl/base.py:12)
        Locals:
            x: <cell at 0x7f0176642380>
    run_worker (/there/vllm/executor.py:932)
    clone3 (libc.so.6)
a line of a log (executor.py:1)""",
    }
    for of, text in dumps.items():
        found = frames("".join(f"{prefix}{line}\n" for line in text.splitlines()))
        assert found == [replace(f, said=f.said if of == "pystack" else None) for f in FRAMES], of


@pytest.mark.parametrize(
    "text",
    [
        "(x pid=1) " * 9_000,
        "Thread 7 (idle)    " + "    x (" * 50_000,
        "\\n" * 50_000,
        '{"log":' * 9_000,
        " " * 100_000,
        "(" * 100_000,
        "[" * 100_000,
        'File "' * 50_000,
        "a-" * 50_000 + "  |",
        "| " * 50_000,
    ],
)
def test_a_hostile_line_is_read_like_any_other(text: str) -> None:
    line = 'File "/x.py", line 3, in f\n'
    assert frames(f"{text}{line}{text}\n")[-1].line == 3
    assert frames(f'File "/x.py", line {"9" * 5000}\n') == []
