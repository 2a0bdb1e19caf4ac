"""What scripts/config_keys.py reads of a tree's source: the words that its code registers, also where a module cannot be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pins import REPO

sys.path.append(str(REPO / "scripts"))

from config_keys import listed, registered, version_of

CODE = """\
import of_no_package
from .registry import register


class Kind(str, Enum):
    FIRST = "first"


@register(Kind.FIRST)
@register("second")
def one(): ...


@Registry.register("of a class")
class Two: ...


for name in ["third", "fourth"]:
    register(name)
register(["fifth", "sixth"])
"""
OTHER = """\
from verl.managers import register as register_manager
from verl.elsewhere import register


@register_manager("seventh")
@register("of another register")
class One: ...
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("verl/managers", "verl/limited"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "verl/managers/a.py").write_text(CODE)
    (tmp_path / "verl/limited/b.py").write_text(OTHER)
    return tmp_path


def test_words_are_those_of_decorators_members_and_lists_under_any_name_of_the_register(tree: Path) -> None:
    found = sorted(registered(tree, "register", "verl.managers"))
    assert found == ["fifth", "first", "second", "seventh", "sixth"]
    assert list(registered(tree, "Registry.register", "verl.managers")) == ["of a class"]
    assert list(registered(tree, "register", "verl.elsewhere")) == ["of another register"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('HALF_LIST = [16, "fp16", torch.float16]', ["16", "fp16"]),
        ('_NAMES_LIST = {("vllm", "async"): "a.B", ("sglang", "async"): "c.D"}', ["vllm", "sglang"]),
        ('OTHER = ["no"]', []),
    ],
)
def test_words_are_those_of_a_list_or_of_a_tables_keys(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "a.py").write_text(text + "\n")
    assert list(listed(tmp_path / "a.py", "_LIST")) == words


def test_a_file_that_a_version_has_not_lists_nothing(tmp_path: Path) -> None:
    assert list(listed(tmp_path / "none.py", "_LIST")) == []


def test_the_version_of_a_tree(tmp_path: Path) -> None:
    assert version_of(tmp_path) == "0.0"
    (tmp_path / "verl" / "version").mkdir(parents=True)
    (tmp_path / "verl" / "version" / "version").write_text("0.9.0\n")
    assert version_of(tmp_path) == "0.9.0"
