"""Replaces one list or mapping in a manifest and keeps every other byte, comments included."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from patchctl.errors import WrongUse


def rewrite_list(text: str, key: str, items: Sequence[str]) -> str:
    """Return `text` with `items` as the top-level list `key`. Raises WrongUse unless it is a block list."""
    lines = text.split("\n")
    found = _block(lines, key)
    if found is None:
        raise WrongUse(f"the manifest has no block list `{key}:`", hint="write it with one `- item` per line")
    block = [f"{key}:", *(f"  - {item}" for item in items)] if items else [f"{key}: []"]
    return "\n".join([*lines[: found.start], *block, *lines[found.stop :]])


def rewrite_texts(text: str, key: str, texts: Mapping[str, str]) -> str:
    """Return `text` with `texts` as the top-level mapping `key`, in place or before `generated:`; removed if empty."""
    lines = text.rstrip("\n").split("\n")
    last = next((i for i, line in enumerate(lines) if line.startswith("generated:")), len(lines))
    found = _block(lines, key) or range(last, last)
    own = [f"  {name}: {json.dumps(one, ensure_ascii=False)}" for name, one in texts.items()]
    return "\n".join([*lines[: found.start], *([f"{key}:", *own] if own else []), *lines[found.stop :], ""])


def _block(lines: Sequence[str], key: str) -> range | None:
    """Return the lines of a top-level key and its value."""
    heads = (f"{key}:", f"{key}: []", f"{key}: {{}}")
    start = next((i for i, line in enumerate(lines) if line.split("#")[0].rstrip() in heads), None)
    if start is None:
        return None
    end = start + 1
    while end < len(lines) and lines[end].startswith((" ", "-", "#")):
        end += 1
    while lines[end - 1].startswith("#"):  # comments before the next key belong to it
        end -= 1
    return range(start, end)
