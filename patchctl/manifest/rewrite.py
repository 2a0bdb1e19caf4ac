"""Changes one list or mapping in a manifest and leaves every other byte, comments included, as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from patchctl.errors import WrongUse


def rewrite_list(text: str, key: str, items: Sequence[str]) -> str:
    """`text` with the top-level list `key` holding `items`. Raises WrongUse when the list is not written as a block."""
    lines = text.split("\n")
    found = _block(lines, key)
    if found is None:
        raise WrongUse(f"the manifest has no block list `{key}:`", hint="write it with one `- item` a line")
    block = [f"{key}:", *(f"  - {item}" for item in items)] if items else [f"{key}: []"]
    return "\n".join([*lines[: found.start], *block, *lines[found.stop :]])


def rewrite_texts(text: str, key: str, texts: Mapping[str, str]) -> str:
    """`text` with the top-level mapping `key` holding `texts`, where it stood, else before `generated:`; without any, it goes."""
    lines = text.rstrip("\n").split("\n")
    last = next((i for i, line in enumerate(lines) if line.startswith("generated:")), len(lines))
    found = _block(lines, key) or range(last, last)
    own = [f"  {name}: {json.dumps(one, ensure_ascii=False)}" for name, one in texts.items()]
    return "\n".join([*lines[: found.start], *([f"{key}:", *own] if own else []), *lines[found.stop :], ""])


def _block(lines: Sequence[str], key: str) -> range | None:
    """Where a top-level key and what it holds stand."""
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
