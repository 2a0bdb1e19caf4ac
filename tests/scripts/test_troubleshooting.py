"""docs/troubleshooting.md names rules, messages and files: they are there, so that the page cannot outlive them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs/troubleshooting.md").read_text(encoding="utf-8")
RULES = yaml.safe_load((REPO / "manifests/rules.yaml").read_text(encoding="utf-8"))["rules"]
RULE = re.compile(r"rules? `([a-z-]+)`")
SCRIPT = re.compile(r"scripts/[\w/]+\.(?:py|sh)")


def test_every_rule_that_is_named_is_one() -> None:
    named = set(RULE.findall(PAGE))
    assert len(named) > 15
    assert named - set(RULES) == set()


def test_every_script_that_is_named_is_there() -> None:
    assert [path for path in set(SCRIPT.findall(PAGE)) if not (REPO / path).is_file()] == []


def messages() -> list[str]:
    part = PAGE.partition("## A feature refuses the configuration")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)


@pytest.fixture(scope="module")
def patches() -> str:
    """All of our code, with texts that go over several lines joined as Python joins them."""
    files = [*(REPO / "patches").rglob("*.patch"), *(REPO / "patches").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return re.sub(r'"\n\+?\s*f?"', "", text)


@pytest.mark.parametrize("message", messages())
def test_every_message_that_is_quoted_stands_in_a_patch(message: str, patches: str) -> None:
    assert message in patches


def test_all_eight_cases_of_the_documents_have_a_place() -> None:
    """facts by letter: operator time-out, HCCL after rollout, controller, rollout, /home, token length, AIV, sleep."""
    headings = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    for words in (
        "MoeDistributeDispatchV2",
        "rollout ends",
        "controller",
        "after some steps",
        "all-gather",
        "Sleep mode",
    ):
        assert any(words in heading for heading in headings), words
    assert "started under `/home`" in PAGE
    assert "`ppo_max_token_len_per_gpu`" in PAGE
