"""benchmarks/context_table.py, under the interpreter that has numba: every draft follows a match."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PROBE = Path(__file__).with_name("probe_context_table.py")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def seen() -> Any:
    python = os.environ.get("PATCHCTL_TORCH_PYTHON")
    if not python:
        pytest.skip("PATCHCTL_TORCH_PYTHON is not set")
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run([python, PROBE], env=environment, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


@pytest.mark.parametrize(("stream", "longest"), [("phrases", 0.99), ("one token", 1.0), ("bits", 0.4)])
def test_drafts_are_what_followed_a_match_while_tables_grow(seen: Any, stream: str, longest: float) -> None:
    steps, follow, follow_the_longest = seen[stream]
    assert steps > 150
    assert follow == 1
    assert follow_the_longest >= longest


def test_bytes_a_token_are_bounded(seen: Any) -> None:
    assert max(seen["bytes"].values()) <= 32


def test_tokens_that_were_taken_back_are_not_followed(seen: Any) -> None:
    assert seen["taken back"] == [[3, 4, 1], [8, 9, 8], []]


def test_without_pages_nothing_is_drafted_and_closing_gives_them_back(seen: Any) -> None:
    assert seen["capped"] == [2, 0, 2]
    assert seen["used"] == 0
