"""Quoting: what Hydra's grammar and the shell make of a value is the value."""

from __future__ import annotations

import pytest

from patchctl.errors import WrongUse
from patchctl.training.recipes.shell import hydra_value


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1e-6", "1e-6"),
        ("True", "True"),
        ("null", "null"),
        ("/data/x-1.parquet", "/data/x-1.parquet"),
        ("[8,16]", "[8,16]"),
        ("[console]", "[console]"),
        ("{a:1}", "{a:1}"),
        ("a b", "'a b'"),
        ("a,b", "'a,b'"),
        ("a=b", "'a=b'"),
        ("${x}", "'${x}'"),
        ("it's", "'it\\'s'"),
        ("back\\", "'back\\\\'"),
        ("a\\'b", "'a\\\\\\'b'"),
        ("", "''"),
        ("数据", "'数据'"),
    ],
)
def test_values(text: str, written: str) -> None:
    assert hydra_value(text) == written


def test_a_list_of_texts_that_need_quotes_is_refused() -> None:
    with pytest.raises(WrongUse):
        hydra_value("[a b]")
