"""What a stack's patch may do to a tree. The parser and `apply` allow more, since real upstream history needs it."""

from __future__ import annotations

from patchctl.errors import BadPatch, Where
from patchctl.patch.names import why_refused
from patchctl.patch.parse import FileChange, Patch

_ALLOWED_MODES = {0o100644, 0o100755}
_RUN_BY_PYTHON = ("sitecustomize", "usercustomize")
_COMPILED = (".pyc", ".pyo")


def check_patch(patch: Patch) -> None:
    """Raise BadPatch for the first change that leaves the tree, makes links or submodules, or runs by itself."""
    for change in patch.changes:
        where = Where(patch.name, change.line)
        for path in {change.old_path, change.new_path} - {None}:
            assert path is not None
            reason = why_refused(path) or _runs_by_itself(path)
            if reason:
                shown = ascii(path[:300].decode("utf-8", "backslashreplace"))
                raise BadPatch(f"a patch may not touch {shown}: {reason}", where=where)
        _check_modes(change, where)


def check_carried(path: str, patch: Patch, line: int) -> None:
    """Apply the same rules to the path of a carried file."""
    reason = why_refused(path.encode()) or _runs_by_itself(path.encode())
    if reason:
        raise BadPatch(f"a patch may not carry {path[:300]!a}: {reason}", where=Where(patch.name, line))


def _check_modes(change: FileChange, where: Where) -> None:
    for mode in (change.old_mode, change.new_mode):
        if mode is not None and mode not in _ALLOWED_MODES:
            raise BadPatch(f"mode {mode:06o} is refused: a stack changes regular files only", where=where)
    if change.kind == "add" and change.new_mode is None:
        raise BadPatch("a new file needs `new file mode`", where=where)


def _runs_by_itself(path: bytes) -> str | None:
    """Return why Python would run this file without an import, or instead of its source; None if it would not."""
    parts = path.decode("utf-8", "replace").casefold().split("/")
    if parts[-1].endswith(".pth") or any(part.split(".")[0] in _RUN_BY_PYTHON for part in parts):
        return "Python would run it at every start"
    if parts[-1].endswith(_COMPILED):
        return "Python would run it instead of its source"
    return None
