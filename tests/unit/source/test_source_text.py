"""What others wrote reaches the terminal only cleaned, and credentials never do."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchctl.terminal.text import one_line, redact, redact_text, visible, visible_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x1b]8;;http://evil\x07link", "\\x1b]8;;http://evil\\x07link"),
        ("\x9b2J", "\\x9b2J"),
        ("good\rbad", "good\\rbad"),
        ("a\x00b\x7f", "a\\x00b\\x7f"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("line\u2028end", "line\\u2028end"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("half\udc80", "half\\udc80"),
        ("Zoë 张伟 — ok", "Zoë 张伟 — ok"),
    ],
)
def test_characters_that_a_terminal_acts_on_become_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_line_ends_and_tabs_stay_in_text_and_not_in_a_line() -> None:
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible_line("a\tb\nc") == "a\\tb\\nc"


@given(st.text())
def test_nothing_unprintable_is_left_on_a_line(text: str) -> None:
    shown = visible_line(text)
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}]
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@host/x.git", "https://host/x.git"),
        ("https://secret@host:8443/x?y=1", "https://host:8443/x?y=1"),
        ("https://u:p@ss@host/x", "https://host/x"),
        ("https://host/x?token=secret&v=1", "https://host/x?token=***&v=1"),
        ("https://host/x?v=1&X-Amz-Signature=secret", "https://host/x?v=1&X-Amz-Signature=***"),
        ("https://host/@scope/pkg", "https://host/@scope/pkg"),
        ("ssh://git@host/x.git", "ssh://git@host/x.git"),
        ("ssh://git:secret@host/x.git", "ssh://git@host/x.git"),
        ("git@host:x.git", "git@host:x.git"),
        ("https://u:sec/ret@host/x", "https://(an invalid address)"),
        ("https://[::1/x", "https://(an invalid address)"),
        ("/srv/git/x.git", "/srv/git/x.git"),
        ("https://host/\x1b[2J", "https://host/\\x1b[2J"),
    ],
)
def test_an_address_is_shown_without_its_credentials(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_credentials_go_from_every_address_in_a_message() -> None:
    said = "fatal: unable to access 'https://u:secret@a/x/': 403; https://secret@b/; Authorization: Basic c2VjcmV0"
    assert "secret" not in redact_text(said) and "c2VjcmV0" not in redact_text(said)
    assert "https://a/x/" in redact_text(said)
    assert redact_text("at https://u:sec/re@t@host/x, once") == "at https://host/x, once"
    assert (
        redact_text("https://host:8443/x@v1 and https://host/@scope")
        == "https://host:8443/x@v1 and https://host/@scope"
    )


def test_one_line_is_short_and_clean() -> None:
    assert one_line("remote: no\n\tfatal:  https://u:p@h/ \x1b[0m") == "remote: no fatal: https://h/ \\x1b[0m"
    assert len(one_line("x" * 1000)) == 300
