"""Puts what a benchmark found between its own markers in a page that people write; nothing else of the page changes."""

from __future__ import annotations

from pathlib import Path


def write_between_markers(page: Path, name: str, text: str) -> None:
    """Replaces what stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`; a page without them gets both at its end."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
    found = page.read_text(encoding="utf-8") if page.exists() else "# Benchmarks\n"
    if begin not in found or end not in found:
        found = f"{found}\n{begin}{end}"
    head, _, rest = found.partition(begin)
    _, _, tail = rest.partition(end)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(head + begin + text + end + tail, encoding="utf-8")
