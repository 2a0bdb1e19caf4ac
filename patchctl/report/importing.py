"""What an import did, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from patchctl.terminal.text import patch_count, visible_line

if TYPE_CHECKING:
    from patchctl.importing.import_patches import Result


def lines(result: Result) -> Iterator[str]:
    """A line a patch, what was mended below it, and what to do next."""
    stack = result.target.stack
    name = f"{stack.upstream}/{stack.name}"
    yield from map(visible_line, result.said)
    for left in result.left:
        yield visible_line(f"passed over {left.file}: {left.why}")
    for patch in result.patches:
        yield visible_line(f"{patch.file}  from {patch.source}, {patch.author}: {patch.subject}")
        yield from (visible_line(f"    {note}") for note in patch.notes)
    new = " (a new stack)" if result.target.is_new else ""
    done = "in" if result.written else "dry run: would go into"
    yield f"{patch_count(len(result.patches))} {done} {name}{new}, tree {result.tip_tree[:12]}"
    waiting = sum(p.open_lines for p in result.patches)
    if not result.written:
        yield "nothing was written"
        return
    if waiting:
        yield f"{waiting} lines of headers wait to be filled in; `patchctl verify --static` names each"
    yield f"next: patchctl edit {name}, fill them in with `git rebase -i`, patchctl export {name}, patchctl lock"


def data(result: Result) -> dict[str, Any]:
    """The shape `patchctl.import/1`, less its name."""
    stack = result.target.stack
    return {
        "upstream": stack.upstream,
        "stack": stack.name,
        "new_stack": result.target.is_new,
        "extends": stack.extends,
        "written": result.written,
        "base": result.base.commit,
        "form": result.base.form,
        "tip_tree": result.tip_tree,
        "candidates": [
            {
                "upstream": c.upstream,
                "stack": c.stack,
                "blobs": c.wanted,
                "at_pin": c.at_pin,
                "at_tip": c.at_tip,
                "paths": c.paths_wanted,
                "paths_found": c.paths,
                "named_as_base": c.base_commit,
            }
            for c in result.target.candidates
        ],
        "said": list(result.said),
        "passed_over": [{"file": left.file, "why": left.why} for left in result.left],
        "patches": [
            {
                "source": p.source,
                "file": p.file,
                "feature": p.feature,
                "subject": p.subject,
                "author": p.author,
                "notes": list(p.notes),
                "open_lines": p.open_lines,
            }
            for p in result.patches
        ],
    }
