"""The note of an export under way: what it takes for its own half-written work, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchctl.workspace.edit import end_export, is_half_exported, note_export

OLD = [("0001-a.patch", b"a", {"x.py": b"1"}), ("0002-b.patch", b"b", {})]
NEW = [("0001-a.patch", b"A", {"x.py": b"2", "y.py": b"3"}), ("0003-c.patch", b"c", {})]


@pytest.mark.parametrize(
    ("now", "half"),
    [
        (OLD, True),
        (NEW, True),
        ([("0001-a.patch", b"A", {"x.py": b"1"}), ("0002-b.patch", b"b", {})], True),
        ([("0001-a.patch", b"mine", {"x.py": b"1"})], False),
        ([("0001-a.patch", b"A", {"x.py": b"mine"})], False),
        ([*NEW, ("0004-mine.patch", b"d", {})], False),
    ],
)
def test_a_mixture_of_before_and_after_is_ours(
    now: list[tuple[str, bytes, dict[str, bytes]]], half: bool, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    note_export(tmp_path, OLD, NEW)
    assert is_half_exported(tmp_path, now) is half
    end_export(tmp_path)
    assert not is_half_exported(tmp_path, now)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"0001-a.patch": 3}'])
def test_a_damaged_note_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "patchctl-exporting.json").write_text(text)
    assert not is_half_exported(tmp_path, OLD)
