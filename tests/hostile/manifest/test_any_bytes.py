"""Whatever a file holds, reading it ends with a value or with InvalidManifest, and never with another exception."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from patchctl.manifest.diagnostics import InvalidManifest
from patchctl.manifest.load import loads
from patchctl.manifest.types import Stack
from patchctl.manifest.yamltree import _NUMBER, _REFUSED, parse

GOOD = (Path(__file__).parent / "good" / "stack-all_keys.yaml").read_bytes()
PIECES = st.sampled_from(
    [b"*a", b"&a ", b"!!x ", b"<<: ", b"? ", b"- ", b": ", b"{", b"]", b"|\n", b"\t", b"\x00", b"\xff", b'"\\ud800"']
)


def reads_or_refuses(data: bytes) -> None:
    try:
        value = loads(data, Stack, "stack.yaml").value
    except InvalidManifest as error:
        assert error.problems
        assert all(p.line >= 1 and p.column >= 1 for p in error.problems)
        assert all(c.isprintable() or c == "\n" for c in str(error))
    else:
        assert value.schema == 1


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    reads_or_refuses(data)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, len(GOOD)), st.integers(0, 30), PIECES | st.binary(max_size=4))
def test_a_good_manifest_with_a_piece_exchanged(start: int, length: int, piece: bytes) -> None:
    reads_or_refuses(GOOD[:start] + piece + GOOD[start + length :])


# Left out: the numbers of YAML 1.2, which PyYAML writes without quotes and which are read as numbers on purpose, and the
# characters that PyYAML writes as they are and that are refused on purpose.
TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20).filter(
    lambda t: not _NUMBER.fullmatch(t) and not _REFUSED.search(t)
)
LEAF = TEXT | st.integers(-(10**8), 10**8) | st.booleans() | st.none()
TREE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)


@pytest.mark.heavy("thousands of inputs")
@settings(deadline=None, max_examples=300)
@given(st.dictionaries(TEXT, TREE, max_size=5), st.booleans())
def test_what_pyyaml_writes_is_read_as_what_it_was(data: dict[str, object], flow: bool) -> None:
    class NoAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    text = yaml.dump(data, Dumper=NoAliases, allow_unicode=True, default_flow_style=flow)
    root, faults = parse(text.encode())
    assert faults == []
    assert root.plain() == data
