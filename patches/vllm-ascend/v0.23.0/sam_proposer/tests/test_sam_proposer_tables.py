"""sam_proposer's tables of hashed contexts: the code of v0.14.0rc1, and what its probe says of it on this tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream

EARLIER = "patches/vllm-ascend/v0.14.0rc1/sam_proposer"
CARRIED = "files/vllm_ascend/spec_decode/context_tables.py"
ROOT = Path(__file__).parents[5]


@pytest.fixture(scope="module")
def seen(upstream: Upstream) -> Any:
    return upstream.run(f"{EARLIER}/tests/probe_sam_tables.py", need=["vllm-ascend"], timeout=300)


@pytest.mark.on
def test_drafts_are_what_followed_whatever_the_steps_and_the_batch(seen: Any) -> None:
    for case, compared in (("searched", 500), ("parts", 80), ("together", 400)):
        assert seen[case]["wrong"] == []
        assert seen[case]["compared"] >= compared
        assert seen[case]["used"] == 0
    assert seen["followed"]["alike"] > 2
    assert seen["followed"]["ahead"] == 0


@pytest.mark.on
def test_drafts_are_as_good_as_those_of_the_automaton(seen: Any) -> None:
    assert len(seen["steps"]) == 4
    for stream, (automaton, tables) in seen["steps"].items():
        assert automaton > 50
        assert tables <= automaton * (1.002 if "source" in stream else 1.02), stream


@pytest.mark.on
def test_they_are_the_tables_of_the_earlier_stack(seen: Any) -> None:
    here = ROOT / "patches/vllm-ascend/v0.23.0/sam_proposer" / CARRIED
    assert here.read_bytes() == (ROOT / EARLIER / CARRIED).read_bytes()
    assert seen["imported"] == []
