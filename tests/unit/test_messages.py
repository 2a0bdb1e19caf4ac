"""Messages and their translations: every one has one, none is left over, both have the same fields."""

from __future__ import annotations

import ast
import copy
import errno
import json
import os
import pickle
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchctl.language import CHINESE, ENGLISH, catalogue, chosen, joined, message, translated, use
from patchctl.os_errors import user_error_or_none
from patchctl.terminal.progress import LineProgress
from patchctl.terminal.text import columns, cut, one_line, padded, visible_line

PACKAGE = Path(__file__).parents[2] / "patchctl"


@pytest.fixture
def chinese() -> Iterator[None]:
    use(CHINESE)
    yield
    use(ENGLISH)


def templates(source: str) -> Iterator[str]:
    """The literal of each call of `message`; other arguments could not be found in the catalogue."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "message":
            first = node.args[0]
            assert isinstance(first, ast.Constant) and isinstance(first.value, str), ast.unparse(node)
            yield first.value


def used() -> set[str]:
    sources = (file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    return {template for source in sources if "language import" in source for template in templates(source)}


def fields(template: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(template) if name is not None)


def test_every_message_has_its_translation_and_none_is_left_over() -> None:
    assert used() == set(catalogue())


def test_no_id_stands_twice() -> None:
    text = (PACKAGE / "language" / "zh_CN.po").read_text(encoding="utf-8")
    assert text.count("\nmsgid ") == len(catalogue()) + 1  # the header


@pytest.mark.parametrize("template", sorted(catalogue()))
def test_a_translation_is_another_text_with_the_same_fields(template: str) -> None:
    translation = catalogue()[template]
    assert fields(translation) == fields(template)
    assert translation.strip() and translation != template


def test_a_template_that_is_no_literal_is_refused() -> None:
    with pytest.raises(AssertionError):
        list(templates("message(f'{x} is gone')"))


def test_a_message_is_its_english_text() -> None:
    made = message("{version} is too old", version="1.0")
    assert made == translated(made) == "1.0 is too old" and json.dumps(made) == '"1.0 is too old"'


def test_values_are_translated_too(chinese: None) -> None:
    made = message(
        "not UTF-8 ({encodings})", encodings=joined([message("{what}: {name}", what=message("text"), name="x")])
    )
    assert made == "not UTF-8 (text: x)" and translated(made) == "不是 UTF-8（文本：x）"
    assert translated("no message") == "no message"


def test_copies_and_safe_lines_can_still_be_translated(chinese: None) -> None:
    made = message("{version} is too old", version="1.0")
    for same in (copy.copy(made), pickle.loads(pickle.dumps(made)), visible_line(made), one_line(made)):
        assert translated(same) == "1.0 版本过低"
    assert translated(one_line(message("{version} is too old", version="a\x1b"))) == "a\\x1b is too old"


def test_a_full_disk_in_chinese(chinese: None) -> None:
    refused = user_error_or_none(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert refused is not None and str(refused) == "this cannot be read or written: No space left on device"
    assert refused.text(translated) == "无法读写：磁盘空间不足"
    assert refused.hint is not None and translated(refused.hint).startswith("请清理磁盘空间")


@pytest.mark.parametrize(
    ("option", "environment", "language"),
    [
        (None, {}, ENGLISH),
        (None, {"LANG": "zh_CN.UTF-8"}, CHINESE),
        (None, {"LANG": "zh"}, CHINESE),
        (None, {"LANG": "zh_TW.UTF-8"}, ENGLISH),
        (None, {"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, ENGLISH),
        (None, {"LC_ALL": "", "LC_MESSAGES": "zh_CN.UTF-8"}, CHINESE),
        (None, {"PATCHCTL_LANG": "en", "LC_ALL": "zh_CN.UTF-8"}, ENGLISH),
        ("zh-CN", {"LC_ALL": "C"}, CHINESE),
        ("en", {"LC_ALL": "zh_CN.UTF-8"}, ENGLISH),
    ],
)
def test_the_option_wins_then_the_variables_in_order(
    option: str | None, environment: dict[str, str], language: str
) -> None:
    assert chosen(option, environment) == language


@pytest.mark.parametrize("width", [60, 80])
def test_chinese_takes_two_columns(width: int) -> None:
    text = "缓存 cache，工作区" * 20
    assert columns("工作区 x") == 8 and columns("e\u0301") == 1
    assert width - 1 <= columns(cut(text, width)) <= width and text.startswith(cut(text, width))
    assert columns(padded("缺失", width)) == width


@pytest.mark.parametrize("width", [60, 80])
def test_progress_stays_on_one_line_of_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("patchctl.terminal.progress.width_of", lambda stream: width)
    LineProgress().start("工作区" * 40, None)
    drawn = capsys.readouterr().err.rpartition("\x1b[K")[2]
    assert width - 2 <= columns(drawn) <= width - 1
