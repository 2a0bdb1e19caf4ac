"""Each Chinese page says what its English page says today."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pins import REPO

sys.path.insert(0, str(REPO / "scripts"))

import translations

PAGES = [page.relative_to(REPO).as_posix() for page in translations.translations()]


@pytest.mark.parametrize("page", PAGES)
def test_no_section_in_english_changed_since_it_was_translated(page: str) -> None:
    changed = ", ".join(translations.changed(REPO / page))
    assert not changed, (
        f"{translations.english_of(REPO / page).relative_to(REPO)} changed in {changed}: "
        f"say so in {page}, then run python scripts/translations.py --renew {page}"
    )


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_have_the_same_sections(page: str) -> None:
    english = translations.english_of(REPO / page).read_text(encoding="utf-8")
    assert translations.levels((REPO / page).read_text(encoding="utf-8")) == translations.levels(english)


@pytest.mark.parametrize("page", PAGES)
def test_each_leads_to_the_other(page: str) -> None:
    chinese, english = REPO / page, translations.english_of(REPO / page)
    for here, word, there in ((chinese, "English", english), (english, "中文", chinese)):
        assert f"[{word}]({os.path.relpath(there, here.parent)})" in here.read_text(encoding="utf-8")


def test_a_page_of_a_folder_translates_that_of_the_same_folder() -> None:
    assert translations.english_of(REPO / "docs/zh-CN/practice/README.md") == REPO / "docs/practice/README.md"
    assert translations.english_of(REPO / "README.zh-CN.md") == REPO / "README.md"


def test_a_section_that_changed_is_named_until_the_page_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translations, "REPO", tmp_path)
    page, english = tmp_path / "docs/zh-CN/a.md", tmp_path / "docs/a.md"
    page.parent.mkdir(parents=True)
    page.write_text("# 甲\n", encoding="utf-8")
    english.write_text("# A\n\n## The one\n\nsays\nthis\n\n```\n# no heading\n```\n\n## Other\n", encoding="utf-8")
    assert translations.changed(page) == ["a", "the-one", "other"]
    translations.renew(page)
    english.write_text("# A\n\n## The one\n\nsays this\n\n```\n# no heading\n```\n\n## Other\n", encoding="utf-8")
    assert translations.changed(page) == []
    english.write_text("# A\n\n## The one\n\nsays that\n\n```\n# no heading\n```\n\n## New\n", encoding="utf-8")
    assert translations.changed(page) == ["the-one", "new", "other"]
    translations.renew(page)
    assert translations.changed(page) == []
    assert page.read_text(encoding="utf-8").endswith("-->\n# 甲\n")
