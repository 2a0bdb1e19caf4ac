"""Errors in manifests, with positions, and the exception that carries them all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import BadManifest, Where
from patchctl.language import joined, message

SHOWN = 50
LONGEST_QUOTE = 80


@dataclass(frozen=True)
class Problem:
    """One error."""

    file: Annotated[str, Doc("manifest or mail")]
    line: Annotated[int, Doc("line number, from 1; 1 if unknown, as in an encoded mail")]
    column: Annotated[int, Doc("column number, from 1")]
    key: Annotated[str, Doc("key path, such as `pin.commit`; empty for the whole file; for a mail, the kind of fault")]
    what: Annotated[str, Doc("description of the fault")]

    @property
    def where(self) -> Where:
        return Where(self.file, self.line)

    def __str__(self) -> str:
        return f"{self.key}: {self.what}" if self.key else self.what


class InvalidManifest(BadManifest):
    """Every error in the manifests read. `what` has a line for each; `where` is the place of the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        ordered = sorted(problems, key=lambda p: (p.file, p.line, p.column))
        first, rest = ordered[0], ordered[1:SHOWN]
        lines = [str(first), *(f"{p.where}: {p}" for p in rest)]
        if len(ordered) > SHOWN:
            lines.append(f"... and {len(ordered) - SHOWN} more")
        super().__init__("\n".join(lines), where=first.where)
        self.problems = tuple(ordered)

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "problems": [asdict(p) for p in self.problems[:SHOWN]]}


def cleaned(text: str) -> str:
    """Make untrusted text safe for a terminal and a CI log."""
    from patchctl.terminal.text import one_line

    return one_line(text)


def quoted(text: str) -> str:
    """Quote `text` with blanks and line ends visible. Credentials are removed before it is cut."""
    from patchctl.terminal.text import redact_text, visible_line

    safe = redact_text(text)
    if len(safe) > LONGEST_QUOTE:
        safe = safe[:LONGEST_QUOTE] + "..."
    return f"'{visible_line(safe)}'"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was probably meant to be, or None."""
    import difflib

    names = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: the nearest known name, else the known names, else ""."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return message("; did you mean '{name}'?", name=cleaned(near))
    if not names:
        return ""
    more = ["..."] if len(names) > 12 else []
    return message("; known: {names}", names=joined([*(cleaned(n) for n in names[:12]), *more]))


def shown(path: Path) -> str:
    """Return a path as a person can open it: relative if below the current directory, else absolute."""
    full, here = Path(os.path.normpath(path.absolute())), Path.cwd()
    return cleaned(str(full.relative_to(here) if full.is_relative_to(here) else full))
