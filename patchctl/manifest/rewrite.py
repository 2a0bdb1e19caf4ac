"""Changes one list in a manifest and leaves every other byte, comments included, as it was."""

from __future__ import annotations

from collections.abc import Sequence

from patchctl.errors import WrongUse


def rewrite_list(text: str, key: str, items: Sequence[str]) -> str:
    """`text` with the top-level list `key` holding `items`. Raises WrongUse when the list is not written as a block."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.split("#")[0].rstrip() in (f"{key}:", f"{key}: []")), None)
    if start is None:
        raise WrongUse(f"the manifest has no block list `{key}:`", hint="write it with one `- item` a line")
    end = start + 1
    while end < len(lines) and (lines[end].startswith((" ", "-")) or lines[end].startswith("#")):
        end += 1
    while lines[end - 1].startswith("#"):  # comments before the next key belong to it
        end -= 1
    block = [f"{key}:", *(f"  - {item}" for item in items)] if items else [f"{key}: []"]
    return "\n".join([*lines[:start], *block, *lines[end:]])
