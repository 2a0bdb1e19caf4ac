"""What a distribution's patch may do to a tree. The engine can do more (real history needs it); a stack may not."""

from __future__ import annotations

from patchctl.errors import BadPatch, Where
from patchctl.patch.names import why_refused
from patchctl.patch.parse import FileChange, Patch

_ALLOWED_MODES = {0o100644, 0o100755}
_RUN_BY_PYTHON = ("sitecustomize.py", "usercustomize.py")


def check_patch(patch: Patch) -> None:
    """Raise BadPatch for the first change that leaves the tree, makes links or submodules, or runs by itself."""
    for change in patch.changes:
        where = Where(patch.name, change.line)
        for path in {change.old_path, change.new_path} - {None}:
            assert path is not None
            reason = why_refused(path) or _runs_by_itself(path)
            if reason:
                raise BadPatch(f"a patch may not touch {ascii(path.decode('utf-8', 'backslashreplace'))}: {reason}", where=where)
        _check_modes(change, where)


def check_carried(path: str, patch: Patch, line: int) -> None:
    """The same rules for a carried file's path."""
    reason = why_refused(path.encode()) or _runs_by_itself(path.encode())
    if reason:
        raise BadPatch(f"a patch may not carry {ascii(path)}: {reason}", where=Where(patch.name, line))


def _check_modes(change: FileChange, where: Where) -> None:
    for mode in (change.old_mode, change.new_mode):
        if mode is not None and mode not in _ALLOWED_MODES:
            raise BadPatch(f"mode {mode:06o} is refused: a stack changes regular files only", where=where)
    if change.kind == "add" and change.new_mode is None:
        raise BadPatch("a new file needs `new file mode`", where=where)


def _runs_by_itself(path: bytes) -> str | None:
    """Files that Python runs at start-up without being imported, when they lie at the top of a folder on its path."""
    if path.endswith(b".pth") or (b"/" not in path and path.decode("utf-8", "replace") in _RUN_BY_PYTHON):
        return "Python would run it at every start"
    return None
