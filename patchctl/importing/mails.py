"""One mail to author, date, message and diff, as `git am` reads it: git's own mailinfo and ident do the reading.

They decode base64, quoted-printable and every character set that iconv knows, obey headers in the body and scissors, and
find the end of the message. What git would guess or lose (bytes of no known character set, no date) is a fault here.
"""

from __future__ import annotations

import codecs
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import BadPatch
from patchctl.git.run import GitFailed, git_environment, run_git, scratch_folder
from patchctl.importing.types import Mail, Message, Notebook
from patchctl.patch.header import Header, ends_message, join_blanks, parse_header, stripspace
from patchctl.patch.write import render_patch

_FIELD = re.compile(rb"[!-9;-~]+:")
_PART = re.compile(r"\[[^\]]*?\b(\d{1,5})/(\d{1,5})\]")
_BASE = re.compile(rb"base-commit: ([0-9a-f]{40})")
_DIFF = re.compile(rb"(?m)^(diff -|--- |@@ )")
_IDENT = re.compile(r"(.*) <(.*)> (\d+ [+-]\d{4})")
_ANY_DATE = "2000-01-01 00:00:00 +0000"  # of a mail that is refused for having none
_FROM = re.compile(rb">?From ")


@dataclass(frozen=True)
class _Read:
    """What git's mailinfo gives: its fields, the message's lines, the diff."""

    fields: dict[str, str]
    message: str
    diff: bytes


def read_mail(mail: Mail, notes: Notebook) -> Message | None:
    """The mail's commit and diff; None, with faults noted, when it cannot be read at all. Faults of its words are noted
    too, and the diff is read on."""
    text = _mend_header(mail, notes)
    text = _recode(mail, text, notes)
    read = _mailinfo(mail, text, notes)
    if read is None:
        return None
    part = _part(text)
    diff = _diff_lines(mail, read.diff, notes)
    before = mail.data.removesuffix(read.diff)  # the same where the mail was encoded, or has no diff
    line = mail.first + before.count(b"\n") if before != mail.data else None
    if part is not None and part[0] == 0 and _DIFF.search(read.diff) is None:
        return Message(mail, "", "", "", read.fields.get("Subject", ""), "", [], line, part)  # becomes no commit
    name, email, date = _ident(mail, read.fields, notes)
    subject = _subject(mail, read.fields, notes)
    message = Message(mail, name, email, date, subject, _body(read.message), diff, line, part)
    base = next((m for m in map(_BASE.fullmatch, diff) if m), None)
    message.base_commit = base[1].decode() if base else None
    return message


def check_words(message: Message, notes: Notebook) -> None:
    """Note a fault when author and message cannot be written so that our reader and `git am` both take them back."""
    header = Header(message.name, message.email, message.date, message.subject, message.body)
    try:
        again, _ = parse_header(render_patch(header, []).split(b"\n"), message.mail.shown)
    except BadPatch as error:
        hint = 'give --author "NAME <MAIL>"' if "author" in error.what else "change the message in the file"
        notes.fault(message.mail, None, "mail", f"its words cannot be a patch's: {error.what}", hint)
        return
    if (again.message, again.name, again.email) != (header.message, header.name, header.email):
        notes.fault(
            message.mail,
            None,
            "mail",
            "`git am` would read its words differently once they are written again",
            "no line of the message may begin a diff or be `---`",
        )


def _mend_header(mail: Mail, notes: Notebook) -> bytes:
    """Where text follows the header at once, the blank line that belongs between them."""
    lines = mail.data.split(b"\n")
    fields = 0
    for number, line in enumerate(lines):
        if line == b"" or (not fields and number and not _FROM.match(lines[0])):
            break
        if _FIELD.match(line):
            fields += 1
        elif not (fields and line[:1] in (b" ", b"\t")) and not _FROM.match(line):
            if fields:
                what = "text stands behind the header without a blank line between them"
                notes.mend(mail, mail.first + number + 1, "blank-line", what, f"put in before line {number + 1}")
                lines.insert(number, b"")
            break
    return b"\n".join(lines)


def _recode(mail: Mail, text: bytes, notes: Notebook) -> bytes:
    """UTF-8 of a mail that does not say its character set; `git am` takes such bytes for ISO-8859-1."""
    lines = text.split(b"\n")
    # A diff without a header has no words: none of its bytes are anybody's to recode.
    end = next((i for i, line in enumerate(lines) if line == b"" or ends_message(line)), len(lines))
    if any(
        re.match(rb"(?i)content-type:.*charset|content-transfer-encoding: *(base64|quoted)", x) for x in lines[:end]
    ):
        return text
    while end < len(lines) and not ends_message(lines[end]):
        end += 1
    words = b"\n".join(lines[:end])
    try:
        words.decode("utf-8")
        return text
    except UnicodeDecodeError as error:
        line = mail.first + words.count(b"\n", 0, error.start) + 1
    charset = notes.options.charset
    try:
        recoded = words.decode(charset).encode() if charset else None
    except UnicodeError:
        recoded = None
    if recoded is None:
        what = "the text is not UTF-8, and the mail names no character set"
        notes.fault(
            mail,
            line,
            "charset",
            what if charset is None else f"the text is neither UTF-8 nor {charset}",
            "--charset NAME says which, for example --charset GBK",
        )
        return b"\n".join([words.decode("utf-8", "replace").encode(), *lines[end:]])
    mail.repairs.append(f"charset: {codecs.lookup(charset or '').name} to UTF-8")
    return b"\n".join([recoded, *lines[end:]])


def _mailinfo(mail: Mail, text: bytes, notes: Notebook) -> _Read | None:
    scissors = "--scissors" if notes.options.scissors else "--no-scissors"
    message, diff = _Pipe(), _Pipe()
    with message, diff:
        command = ["mailinfo", "-u", scissors, message.name, diff.name]
        try:
            # Not in the current folder, whose repository could set another encoding.
            info = run_git(command, stdin=text, cwd=scratch_folder(), pass_fds=(message.end, diff.end))
        except GitFailed as error:
            said = error.stderr.strip().splitlines() or ["git ended without a word"]
            notes.fault(mail, None, "mail", f"`git am` cannot read it: {said[-1]}", "save the mail as UTF-8")
            return None
    pairs = (line.partition(": ") for line in info.decode("utf-8", "replace").split("\n") if line)
    return _Read({k: v for k, _, v in pairs}, message.held.decode("utf-8", "replace"), diff.held)


class _Pipe:
    """In place of a file that git is told to write: of one that the disk does not take mailinfo says nothing. `held` is
    there after the block."""

    def __enter__(self) -> _Pipe:
        start, self.end = os.pipe()
        self.name = f"/dev/fd/{self.end}"
        self._reader = threading.Thread(target=self._read, args=(start,))
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.end)
        self._reader.join()

    def _read(self, start: int) -> None:
        with open(start, "rb") as pipe:
            self.held = pipe.read()


def _diff_lines(mail: Mail, diff: bytes, notes: Notebook) -> list[bytes]:
    """Its lines; an encoded mail can bring a diff with CRLF that the mail's own line ends do not show."""
    lines = diff.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if any(line.startswith((b"diff --git ", b"--- ")) and line.endswith(b"\r") for line in lines):
        notes.mend(mail, None, "line-ends", "the lines of the encoded diff end with CRLF", "CRLF to LF in the diff")
        lines = [line.removesuffix(b"\r") for line in lines]
    return lines


def _ident(mail: Mail, fields: dict[str, str], notes: Notebook) -> tuple[str, str, str]:
    """Author and date as `git am` would commit them: git cleans names and reads dates."""
    name, email, date = fields.get("Author", ""), fields.get("Email", ""), fields.get("Date", "")
    if not email and notes.options.author:
        name, email = notes.options.author
        mail.repairs.append(f"author: {name} <{email}>, from --author")
    elif not email:
        notes.fault(mail, mail.first + 1, "author", "names no author", 'give one with --author "NAME <MAIL>"')
    if not date and notes.options.date:
        date = notes.options.date
        mail.repairs.append(f"date: {date}, from --date")
    elif not date:
        notes.fault(
            mail, mail.first + 1, "date", "has no date", "give one with --date DATE; each run must write the same"
        )
    try:
        return git_ident(name or "x", email or "x@x", date or _ANY_DATE)
    except ValueError as error:
        kind = "date" if "date" in str(error) else "author"
        hint = "change the line in the file" if kind == "date" else 'give another with --author "NAME <MAIL>"'
        notes.fault(mail, mail.first + 1, kind, f"`git am` cannot take its {kind}: {error}", hint)
        return "x", "x@x", "946684800 +0000"


def git_ident(name: str, email: str, date: str) -> tuple[str, str, str]:
    """Name, address and date (git's seconds and zone) as a commit would have them. ValueError in git's words."""
    own = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": date}
    try:
        said = run_git(["var", "GIT_AUTHOR_IDENT"], env={**git_environment(), **own}).decode("utf-8", "replace").strip()
    except (GitFailed, ValueError) as error:  # ValueError: a NUL, which no environment holds
        said = error.stderr.strip().splitlines()[-1] if isinstance(error, GitFailed) else str(error)
        raise ValueError(said.removeprefix("fatal: ")) from error
    match = _IDENT.fullmatch(said)
    if match is None:
        raise ValueError(f"git makes {said!a} of it")
    return match[1], match[2], match[3]


def _subject(mail: Mail, fields: dict[str, str], notes: Notebook) -> str:
    subject = join_blanks(fields.get("Subject", ""))
    if subject:
        return subject
    stem = re.sub(r"^\d+[-_. ]*", "", Path(mail.file).stem)
    made = join_blanks(re.sub(r"[^A-Za-z0-9]+", " ", stem)) or "patch"
    notes.mend(mail, mail.first + 1, "subject", "has no subject", f"{made!r}, from the file's name")
    return made


def _body(message: str) -> str:
    return stripspace(message.replace("\r\n", "\n")).strip("\n")


def _part(text: bytes) -> tuple[int, int] | None:
    """What `[PATCH n/m]` of the subject says; cover letters have n = 0."""
    head = text.split(b"\n\n", 1)[0].decode("utf-8", "replace")
    subject = re.search(r"(?im)^subject:(.*(?:\n[ \t].*)*)", head)
    match = _PART.search(subject[1]) if subject else None
    return (int(match[1]), int(match[2])) if match else None
