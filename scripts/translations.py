"""Say which sections of a page in English have changed since its Chinese page was written.

A Chinese page begins with a comment that has a digest of each section of its English page. Change the translation, then:
python scripts/translations.py --renew docs/zh-CN/NAME.md
"""

from __future__ import annotations

import argparse
import hashlib
import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
HEADER = re.compile(r"\A<!-- translates (?P<page>\S+)\n(?P<digests>(?:\S+ [0-9a-f]{12}\n)*)-->\n")
FENCED = re.compile(r"(?ms)^```.*?^```")
HEADING = re.compile(r"(?m)^(#+) (.+)$")


def translations() -> list[Path]:
    return [REPO / "README.zh-CN.md", *sorted((REPO / "docs/zh-CN").rglob("*.md"))]


def english_of(page: Path) -> Path:
    return REPO / "README.md" if page.parent == REPO else REPO / "docs" / page.relative_to(REPO / "docs/zh-CN")


def levels(text: str) -> list[int]:
    """How deep each heading is."""
    return [len(found[1]) for found in _headings(text)]


def sections(text: str) -> dict[str, str]:
    """A digest of what stands below each heading, down to the next one; wrapping lines anew changes none."""
    found = _headings(text)
    ends = [*(heading.start() for heading in found[1:]), len(text)]
    return {
        re.sub(r"\W+", "-", heading[2].lower()).strip("-"): _digest(text[heading.start() : end])
        for heading, end in zip(found, ends, strict=True)
    }


def changed(page: Path) -> list[str]:
    """The English sections that are not as they were when this page was last renewed, that came, or that went."""
    said = HEADER.match(page.read_text(encoding="utf-8"))
    then = dict(line.split() for line in said["digests"].splitlines()) if said else {}
    now = sections(english_of(page).read_text(encoding="utf-8"))
    return [name for name in {**now, **then} if now.get(name) != then.get(name)]


def renew(page: Path) -> None:
    english = english_of(page)
    digests = sections(english.read_text(encoding="utf-8"))
    lines = [f"{name} {digest}\n" for name, digest in digests.items()]
    head = f"<!-- translates {english.relative_to(REPO).as_posix()}\n{''.join(lines)}-->\n"
    page.write_text(head + HEADER.sub("", page.read_text(encoding="utf-8")), encoding="utf-8")


def _headings(text: str) -> list[re.Match[str]]:
    prose = FENCED.sub(lambda code: " " * len(code[0]), text)
    return list(HEADING.finditer(prose))


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--renew", metavar="PAGE", type=Path, nargs="+", required=True, help="write the digests of today"
    )
    for page in parser.parse_args().renew:
        renew(page.resolve())


if __name__ == "__main__":
    main()
