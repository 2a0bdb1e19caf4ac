"""The types shared by the parts of an import: options, mails, notes, faults, and the error that carries all faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from patchctl.doc import Doc
from patchctl.errors import PatchctlError, Where
from patchctl.terminal.text import counted

Repair = Literal["line-ends", "blank-line", "subject", "ids"]
REPAIRS: tuple[Repair, ...] = ("line-ends", "blank-line", "subject", "ids")
SHOWN = 200


@dataclass(frozen=True)
class ImportFault:
    """Why a file cannot be imported, and what to try. `line` counts from 1 in the file; None for an encoded mail.

    `kind`: mail, charset, line-ends, blank-line, author, date, subject, ids, diff, policy, duplicate or does-not-apply.
    """

    file: str
    line: int | None
    kind: str
    what: str
    hint: str | None = None

    @property
    def where(self) -> Where:
        return Where(self.file, self.line)

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f"\n    try: {self.hint}" if self.hint else "")


class ImportRefused(PatchctlError):
    """Every fault of every file; nothing was written. Exit code 4 if the only faults are patches that do not apply."""

    code = 2
    kind = "patch"

    def __init__(self, faults: Sequence[ImportFault], said: Sequence[str] = ()) -> None:
        files = len({f.file for f in faults})
        lines = [f"nothing is imported: {counted(len(faults), 'fault')} in {counted(files, 'file')}"]
        lines += [str(f) for f in faults[:SHOWN]]
        lines += [f"... and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
        lines += said
        kinds = sorted({f.kind for f in faults} & set(REPAIRS))
        hint = f"--repair mends {', '.join(kinds)} and says so for each file" if kinds else None
        super().__init__("\n".join(lines), hint=hint)
        self.faults = tuple(faults)
        if all(f.kind == "does-not-apply" for f in faults):
            self.code, self.kind = 4, "does-not-apply"

    def as_json(self) -> dict[str, object]:
        found = [
            {"file": f.file, "line": f.line or 1, "column": 1, "key": f.kind, "what": f.what}
            for f in self.faults[:SHOWN]
        ]
        return {**super().as_json(), "problems": found}


@dataclass(frozen=True)
class Options:
    """The user's options. `strip` is `git am`'s -p, None to detect it; `maps` are (old, new) path prefixes."""

    repair: frozenset[str] = frozenset()
    author: tuple[str, str] | None = None
    date: str | None = None
    charset: str | None = None
    scissors: bool = False
    mboxrd: bool = False
    strip: int | None = None
    maps: tuple[tuple[bytes, bytes], ...] = ()


@dataclass
class Mail:
    """A mail or diff, unparsed. `first` is the 0-based line of the file at which `data` begins."""

    file: str
    shown: str
    data: bytes
    first: int = 0
    repairs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Left:
    """A skipped file: a cover letter or a file that is not a mail."""

    file: Annotated[str, Doc("path, with `#N` for the Nth mail of an mbox")]
    why: Annotated[str, Doc("why the file was skipped")]


@dataclass
class Message:
    """A mail as `git am` reads it: the commit message and the lines of the diff.

    `line` is the file's line (0-based) of the diff's first line; None if the mail was encoded. `part` is the text of
    `[PATCH n/m]`.
    """

    mail: Mail
    name: str
    email: str
    date: str
    subject: str
    body: str
    diff: list[bytes]
    line: int | None
    part: tuple[int, int] | None = None
    base_commit: str | None = None

    def place(self, at: int) -> int | None:
        """Return the file's line, from 1, for the diff's line `at`."""
        return None if self.line is None else self.line + at + 1


class Notebook:
    """Collects faults, and turns those with a requested repair into notes of their mail."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.faults: list[ImportFault] = []

    def fault(self, mail: Mail, line: int | None, kind: str, what: str, hint: str | None = None) -> None:
        self.faults.append(ImportFault(mail.file if line is not None else mail.shown, line, kind, what, hint))

    def mend(self, mail: Mail, line: int | None, kind: Repair, what: str, done: str) -> None:
        """Note a requested repair, or record the fault if it was not requested. Callers repair in either case, so that
        later faults are found in the same run.
        """
        if kind in self.options.repair:
            mail.repairs.append(f"{kind}: {done}")
        else:
            self.fault(mail, line, kind, what, f"--repair, or --repair-only {kind}")
