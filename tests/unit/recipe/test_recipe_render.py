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
        ('["console","wandb"]', '["console","wandb"]'),
        ("[[a, 'b c'],{d: [1]}]", "[[a, 'b c'],{d: [1]}]"),
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


@pytest.mark.parametrize("text", ["[a#b]", "[a", "[a,]", "{a:1}}", "{'a':1}", "{a}", '["a]'])
def test_what_hydra_would_not_parse_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="Hydra would not parse it"):
        hydra_value(text)
