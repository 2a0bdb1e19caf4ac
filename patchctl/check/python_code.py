"""What patches do to Python files: that these compile, and gain no name that is defined nowhere."""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from patchctl.findings.report import Finding
from patchctl.stack.patches import CARRIED_FOLDER, StackPatch


@dataclass(frozen=True)
class Changed:
    """One patch at work: each path that it writes, with the content before (None for a new file) and after."""

    patch: StackPatch
    files: Mapping[str, tuple[bytes | None, bytes]]


@dataclass
class PythonCheck:
    """Remembers what it parsed: the file after one patch is the file before the next.

    pyflakes reads names only; it imports and runs nothing.
    """

    upstream: str
    checked: set[str] = field(default_factory=set)
    _undefined: dict[bytes, Counter[str]] = field(default_factory=dict)

    def carried(self, patch: StackPatch) -> Iterator[Finding]:
        """The files that a patch carries: nothing else is needed to read them."""
        yield from self.changed(Changed(patch, {path: (None, data) for path, data in patch.carried.items()}))

    def changed(self, changed: Changed) -> Iterator[Finding]:
        """Every Python file that a patch writes."""
        patch = changed.patch
        for path, (before, after) in changed.files.items():
            if not path.endswith((".py", ".pyi")):
                continue
            self.checked.add(path)
            file, line = _place(patch, path)
            broken = _compile(path, after)
            if broken is not None:
                # A file that upstream's own code breaks for this Python is not the patch's fault.
                if before is None or _compile(path, before) is None:
                    found, what = broken
                    shown = (patch.shown, line) if file == patch.shown else (file, found)
                    message = f"{path} line {found} does not compile: {what}"
                    yield Finding("python-compiles", message, *shown, "error", self.upstream, patch.feature)
                continue
            gained = self._names(after) - (Counter() if before is None else self._names(before))
            for name in sorted(gained):
                message = f"{path}: {name} is defined nowhere"
                yield Finding("undefined-name", message, file, line, "error", self.upstream, patch.feature)

    def _names(self, source: bytes) -> Counter[str]:
        """How often each undefined name is used; a file that does not compile has none."""
        if source not in self._undefined:
            self._undefined[source] = _undefined_names(source)
        return self._undefined[source]


def _place(patch: StackPatch, path: str) -> tuple[str, int | None]:
    """Where a person repairs it: the carried file, or the patch's section for this file."""
    if path in patch.carried:
        folder = patch.shown.rpartition("/")[0]
        return f"{folder}/{CARRIED_FOLDER}/{path}", None
    line = next((c.line for c in patch.patch.changes if c.new_path == path.encode("utf-8", "surrogateescape")), None)
    return patch.shown, line


def _compile(path: str, source: bytes) -> tuple[int, str] | None:
    """None when it compiles, else the line and what is wrong. No bytecode is written, nothing is run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte; nested too deep
        return 1, str(error) or type(error).__name__
    return None


def _undefined_names(source: bytes) -> Counter[str]:
    from pyflakes.checker import Checker
    from pyflakes.messages import UndefinedExport, UndefinedLocal, UndefinedName

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Counter()
    found = Checker(tree).messages
    return Counter(
        str(m.message_args[0]) for m in found if isinstance(m, (UndefinedName, UndefinedLocal, UndefinedExport))
    )
