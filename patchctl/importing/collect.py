"""From the names on the command line to single mails, in the order in which they apply.

The patch formats beside mails that `git am` knows, StGit's and Mercurial's, are turned into mails (git's builtin/am.c).
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from patchctl.errors import WrongUse
from patchctl.git.run import GitFailed, run_git
from patchctl.importing.types import Left, Mail, Message, Notebook
from patchctl.patch.parse import MAX_PATCH

_FIELD = re.compile(rb"(From|Author|Date):")


def as_mail(data: bytes) -> bytes:
    """`data` as a mail where it is a StGit or Mercurial patch; anything else as it is."""
    if data.startswith(b"# HG changeset patch"):
        return _mercurial(data)
    lines = data.lstrip(b"\n").split(b"\n", 3)
    is_stgit = len(lines) > 2 and lines[1] == b"" and _FIELD.match(lines[2]) is not None
    return _stgit(data.lstrip(b"\n")) if is_stgit and not data.startswith((b"From ", b"From:")) else data


def _stgit(data: bytes) -> bytes:
    subject, _, rest = data.partition(b"\n\n")
    head = [b"Subject: " + subject]
    lines = rest.split(b"\n")
    while lines and _FIELD.match(lines[0]):
        head.append(lines.pop(0).replace(b"Author:", b"From:", 1))
    return b"\n".join([*head, b"", *lines])


def _mercurial(data: bytes) -> bytes:
    lines = data.split(b"\n")
    head: list[bytes] = []
    while lines and lines[0].startswith(b"# "):
        line = lines.pop(0)
        if line.startswith(b"# User "):
            head.append(b"From: " + line[len(b"# User ") :])
        elif match := re.fullmatch(rb"# Date (\d+)(?:\.\d+)? (-?\d+)", line):
            west = int(match[2])  # Mercurial counts seconds west of Greenwich
            sign = b"-" if west > 0 else b"+"
            minutes = abs(west) // 60
            head.append(b"Date: %s %s%02d%02d" % (match[1], sign, minutes // 60, minutes % 60))
    subject = lines.pop(0) if lines else b""
    return b"\n".join([*head, b"Subject: " + subject, b"", *lines])


SUFFIXES = (".patch", ".diff", ".eml", ".mbox", ".mbx", ".mail")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BEGIN = re.compile(rb"(?m)^From ")
_MOST_MAILS = 5000
_COMMENT = re.compile(r"(?:^|\s)#.*")
_DIGITS = re.compile(r"(\d+)")


def collect(sources: Sequence[Path], notes: Notebook) -> tuple[list[Mail], list[Left]]:
    """Every mail of these files, folders and mboxes. What is no mail in a folder is passed over, and said.

    Raises WrongUse for a name that is not there, and when nothing at all is found.
    """
    mails: list[Mail] = []
    left: list[Left] = []
    for source in sources:
        for file in _files(source, left, notes):
            mails += _read(file, _shown(file), notes)
    if not mails and not notes.faults:
        named = ", ".join(_shown(s) for s in sources)
        raise WrongUse(f"there is no mail and no patch in {named}", hint=f"names that count: *{', *'.join(SUFFIXES)}")
    return mails, left


def in_order(messages: list[Message]) -> list[str]:
    """Sort by `[PATCH n/m]` when every mail has one of the same m and none twice; else the order of the files stays.
    Returns what a user should know of the numbers."""
    parts = [m.part for m in messages]
    counts = {p[1] for p in parts if p}
    numbers = [p[0] for p in parts if p]
    if len(counts) != 1 or None in parts or len(set(numbers)) != len(numbers):
        return []
    said = []
    if numbers != sorted(numbers):
        messages.sort(key=lambda m: m.part or (0, 0))
        said.append("the mails are taken in the order of their numbers, [PATCH n/m], which is not that of the files")
    missing = sorted(set(range(1, counts.pop() + 1)) - set(numbers))
    if missing:
        said.append(f"by its numbers the series has more mails: {', '.join(map(str, missing))} not given")
    return said


def _files(source: Path, left: list[Left], notes: Notebook) -> list[Path]:
    try:
        mode = source.stat().st_mode
    except OSError as error:
        raise WrongUse(f"{_shown(source)} cannot be read: {error.strerror}") from error
    if not stat.S_ISDIR(mode):
        return [source]
    folders = [source / "cur", source / "new"]
    if all(f.is_dir() for f in folders):  # a Maildir, whose names have no endings
        return sorted((f for d in folders for f in d.iterdir() if f.is_file()), key=lambda f: _natural(f.name))
    if (source / "series").is_file():
        return _quilt(source, left, notes)
    found = []
    for file in sorted(source.iterdir(), key=lambda f: _natural(f.name)):
        if file.name.startswith("."):
            continue
        if file.is_file() and file.name.lower().endswith(SUFFIXES):
            if file.stat().st_size:
                found.append(file)
            else:  # `git format-patch` of an empty commit
                left.append(Left(_shown(file), "empty"))
        else:
            left.append(Left(_shown(file), "no name of a mail or a patch"))
    return found


def _quilt(folder: Path, left: list[Left], notes: Notebook) -> list[Path]:
    """A folder of quilt's: `series` names the patches in their order, # begins a comment, and what it does not name is not
    applied (quilt(1))."""
    series = folder / "series"
    found: list[Path] = []
    for number, line in enumerate(series.read_text(encoding="utf-8", errors="surrogateescape").splitlines(), 1):
        name, *options = _COMMENT.sub("", line).split() or [""]
        if not name:
            if (file := folder / line.strip("# \t").split(" ")[0]).is_file():
                left.append(Left(_shown(file), "commented out in series"))
            continue
        if "-R" in options:
            notes.fault(
                Mail(_shown(series), _shown(series), b""),
                number,
                "mail",
                f"{name} is to be taken back (-R)",
                "leave it out",
            )
        elif not (folder / name).is_file():
            notes.fault(Mail(_shown(series), _shown(series), b""), number, "mail", f"{name} is not there")
        else:
            found.append(folder / name)
    named = {*found, *(Path(one.file) for one in left), series}
    left += [Left(_shown(f), "not named in series") for f in sorted(folder.iterdir()) if f.is_file() and f not in named]
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """2-x before 10-x, as numbers are meant and as `git am` takes a Maildir."""
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in _DIGITS.split(name)]


def _shown(file: Path) -> str:
    return os.fsencode(file).decode("utf-8", "backslashreplace")


def _read(file: Path, shown: str, notes: Notebook) -> list[Mail]:
    whole = Mail(shown, shown, b"")
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            notes.fault(whole, None, "mail", "is no regular file")
            return []
        if status.st_size > MAX_PATCH:
            notes.fault(whole, None, "mail", f"is larger than {MAX_PATCH // 2**20} MiB")
            return []
        whole.data = file.read_bytes()
    except OSError as error:
        notes.fault(whole, None, "mail", f"cannot be read: {error.strerror}")
        return []
    if whole.data.startswith((b"\xff\xfe", b"\xfe\xff")):
        notes.fault(whole, 1, "charset", "is written in UTF-16", "save it as UTF-8; PowerShell's `>` writes UTF-16")
        return []
    if not whole.data.strip():
        notes.fault(whole, 1, "mail", "is empty")
        return []
    _mend_ends(whole, notes)
    whole.data = as_mail(whole.data)
    return _split(whole, notes)


def _mend_ends(mail: Mail, notes: Notebook) -> None:
    """A mail whose first line ends with CRLF was converted as a whole; one with CR in the diff alone is for such files."""
    if mail.data.startswith(_BYTE_ORDER_MARK):
        notes.mend(mail, 1, "line-ends", "begins with a byte order mark", "a byte order mark at the start taken away")
        mail.data = mail.data[len(_BYTE_ORDER_MARK) :]
    if mail.data.split(b"\n", 1)[0].endswith(b"\r"):
        lines = mail.data.split(b"\n")
        count = sum(1 for line in lines if line.endswith(b"\r"))
        notes.mend(mail, 1, "line-ends", f"{count} lines end with CRLF", f"CRLF to LF in {count} lines")
        mail.data = b"\n".join(line.removesuffix(b"\r") for line in lines)


def _split(whole: Mail, notes: Notebook) -> list[Mail]:
    """The mails of an mbox, split by git itself, into a file each."""
    count = len(_BEGIN.findall(whole.data))
    if count > _MOST_MAILS:
        notes.fault(
            whole, 1, "mail", f"holds {count} mails, and {_MOST_MAILS} at most are taken", "give the series alone"
        )
        return []
    with tempfile.TemporaryDirectory(prefix="patchctl-import-") as folder:
        kind = ["--mboxrd"] if notes.options.mboxrd else []
        try:
            run_git(["mailsplit", "--keep-cr", "-b", *kind, f"-o{folder}"], stdin=whole.data, cwd=Path(folder))
        except GitFailed as error:
            notes.fault(whole, 1, "mail", f"git cannot split it into mails: {error.stderr.strip()}")
            return []
        pieces = [file.read_bytes() for file in sorted(Path(folder).iterdir(), key=lambda f: int(f.name))]
    lines = whole.data.lstrip().count(b"\n")
    if (
        sum(piece.count(b"\n") for piece in pieces) != lines
    ):  # git does not look whether its last bytes reached the disk
        raise WrongUse(
            "git did not write the mails whole", where=whole.shown, hint="when the disk takes them, run the same again"
        )
    if len(pieces) == 1:
        whole.data = pieces[0]
        return [whole]
    mails = []
    first = 0
    for number, piece in enumerate(pieces, 1):
        repairs = list(whole.repairs) if number == 1 else []
        mails.append(Mail(whole.file, f"{whole.file}#{number}", piece, first, repairs))
        first += piece.count(b"\n")
    return mails
