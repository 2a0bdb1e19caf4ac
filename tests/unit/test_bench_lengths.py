"""benchmarks/lengths: what make.py takes from a trace, how it refuses, and that the committed quantiles are its own."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from programs import loaded

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "lengths"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
MAY_BE_PASSED_ON = {"Apache-2.0", "CC-BY-4.0"}


@pytest.fixture(scope="module")
def make() -> Iterator[ModuleType]:
    with loaded(FOLDER / "make.py") as module:
        yield module


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "make.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def made(make: ModuleType, name: str, files: dict[str, str], tmp_path: Path) -> dict:
    """What make.py writes for a trace with these files, below the path that it looks at."""
    for file, text in files.items():
        place = tmp_path / "trace" / make.SOURCES[name].path / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    done = run(name, tmp_path / "trace", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / f"{name}.json").read_text())


def test_quantiles_are_the_middles_of_parts_of_equally_many(make: ModuleType) -> None:
    assert make.quantiles(Counter([10, 20, 30, 40]), 4) == [10, 20, 30, 40]
    assert make.quantiles(Counter([10, 10, 10, 40]), 2) == [10, 40]
    assert make.quantiles(Counter([7]), 3) == [7, 7, 7]
    rng = random.Random(1)
    for count, parts in ((5, 3), (100, 7), (1000, 512), (3, 512)):
        lengths = sorted(rng.randint(1, 60) for _ in range(count))
        expected = [lengths[(2 * part + 1) * count // (2 * parts)] for part in range(parts)]
        assert make.quantiles(Counter(lengths), parts) == expected


def test_prompt_and_answer_of_a_csv_trace_are_added(make: ModuleType, tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,374,44\n2023-11-16 18:15:50.9,396,109\n"
    found = made(make, "azure_conversation", {"": text}, tmp_path)
    assert (found["requests"], found["mean"], found["longest"]) == (2, 461.5, 505)
    assert found["quantiles"] == [418] * 256 + [505] * 256


def test_prompt_and_answer_of_a_jsonl_trace_are_added(make: ModuleType, tmp_path: Path) -> None:
    lines = [{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0]}] * 3
    found = made(make, "mooncake_conversation", {"": "\n".join(map(json.dumps, lines)) + "\n"}, tmp_path)
    assert (found["requests"], found["mean"], found["longest"]) == (3, 7258, 7258)
    assert set(found["quantiles"]) == {7258}


def test_shares_become_answers_again(make: ModuleType, tmp_path: Path) -> None:
    """Three answers of one client in a quarter, one of 100 and two of 200 tokens; four of another; a quarter of none."""
    one = {"0": {"input_tokens": "{9: 1.0}", "output_tokens": f"{{100: {1 / 3}, 200: {2 / 3}}}", "reason_ratio": "{}"}}
    two = {"0": {"output_tokens": "{}"}, "21600": {"output_tokens": "{200: 0.25, 300: 0.25, 400: 0.5}"}}
    files = {"chunk-0-dataset.json": json.dumps(one), "chunk-1-dataset.json": json.dumps(two), "chunk-0-trace.csv": "x"}
    found = made(make, "deepseek_r1_answers", files, tmp_path)
    assert (found["requests"], found["longest"]) == (7, 400)
    assert found["mean"] == pytest.approx((100 + 3 * 200 + 300 + 2 * 400) / 7, abs=0.05)


@pytest.mark.parametrize(
    ("name", "file", "text", "words"),
    [
        ("azure_conversation", None, "", "No such file"),
        ("azure_conversation", "", "Context,Generated\n1,2\n", "ContextTokens"),
        ("azure_conversation", "", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ("mooncake_conversation", "", "version https://git-lfs.github.com/spec/v1\n", "JSONDecodeError"),
        ("deepseek_r1_answers", None, "", "no requests"),
        ("deepseek_r1_answers", "a-dataset.json", '{"0": {"output_tokens": "{1: 0.4, 2: 0.6}"}}', "whole number"),
    ],
)
def test_what_is_not_the_trace_is_refused(
    make: ModuleType, tmp_path: Path, name: str, file: str | None, text: str, words: str
) -> None:
    if file is not None:
        place = tmp_path / make.SOURCES[name].path / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    done = run(name, tmp_path, "--out", tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and words in done.stderr and make.SOURCES[name].commit[:12] in done.stderr
    assert not list(tmp_path.glob("*.json"))


def test_each_source_is_committed(make: ModuleType) -> None:
    assert sorted(make.SOURCES) == NAMES and len(NAMES) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_committed_quantiles_say_where_they_come_from_and_keep_the_mean(make: ModuleType, name: str) -> None:
    found, source = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")), make.SOURCES[name]
    for fact in ("what", "repository", "commit", "path", "licence", "attribution"):
        assert found[fact] == getattr(source, fact)
    assert len(found["commit"]) == 40 and found["licence"] in MAY_BE_PASSED_ON
    quantiles = found["quantiles"]
    assert len(quantiles) == make.PARTS and quantiles == sorted(quantiles)
    assert quantiles[0] > 0 and quantiles[-1] <= found["longest"] and found["requests"] > 10_000
    assert statistics.fmean(quantiles) == pytest.approx(found["mean"], rel=2e-3)
