"""The mail header and message of a patch file, read as `git am` reads them so that both make the same commit.

Follows git's mailinfo.c, ident.c, builtin/mailsplit.c and builtin/am.c: header fields, then the body up to `---` or the
start of a diff, then stripspace on the message. Where git guesses (several mails in one file, headers in the body, other
encodings) or its versions disagree, this module refuses. Python's email package differs: it drops a no-break space at the end
of a subject, which git keeps (verl's history has one), and joins encoded words differently.
"""

from __future__ import annotations

import base64
import binascii
import calendar
import re
from dataclasses import dataclass, field

from patchctl.errors import BadPatch, Where

_MONTHS = {
    m: i for i, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)
}
_DATE = re.compile(r"(?a)(?:[A-Z][a-z]{2}, )?(\d{1,2}) ([A-Z][a-z]{2}) (\d{4}) (\d{2}):(\d{2}):(\d{2}) ([+-]\d{4})")
_KNOWN = {"from", "date", "subject", "mime-version", "content-type", "content-transfer-encoding", "message-id"}
_LONGEST_HEADER = 500
_LONGEST_FIELD = 20_000
_TRAILER = re.compile(r"([A-Z][A-Za-z-]*): +(\S.*)")


@dataclass(frozen=True)
class Trailer:
    """One `Key: value` of the message's last paragraph, and its line in the file."""

    value: str
    line: int


@dataclass(frozen=True)
class Header:
    """Author, date and message. `date` has git's raw format: seconds since the epoch and a zone."""

    name: str
    email: str
    date: str
    subject: str
    body: str
    trailers: dict[str, list[Trailer]] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """The commit message as `git am` would write it, ending with a newline."""
        return stripspace(f"{self.subject}\n\n{self.body}\n")

    def trailer(self, key: str) -> str | None:
        """Return the value of a trailer that occurs exactly once, else None."""
        found = self.trailers.get(key, [])
        return found[0].value if len(found) == 1 else None

    def listed(self, key: str) -> list[str]:
        """Return all values of a list trailer, whether repeated or separated by commas."""
        values = ",".join(t.value for t in self.trailers.get(key, []))
        return [v.strip() for v in values.split(",") if v.strip()]


def stripspace(text: str) -> str:
    """git's stripspace: no trailing blanks, no repeated or outer empty lines, one newline at the end."""
    out: list[str] = []
    for line in text.split("\n"):
        line = line.rstrip(" \t\r")  # git's isspace() excludes form feed and vertical tab
        if line or (out and out[-1]):
            out.append(line)
    while out and not out[-1]:
        out.pop()
    return "\n".join(out) + "\n" if out else ""


def parse_header(lines: list[bytes], name: str) -> tuple[Header, int]:
    """Parse header and message; return them and the 0-based line where the diff begins. Raises BadPatch."""
    if not any(lines):
        raise BadPatch("the file is empty", where=Where(name, 1))
    if lines and lines[0].startswith(b"\xef\xbb\xbf"):
        raise BadPatch("the file begins with a byte order mark", where=Where(name, 1))
    fields, at = _fields(lines, name)
    _check_encoding(fields, name)
    author, email = _author(fields, name)
    date = _date(fields, name)
    subject = _subject(fields, name)
    body_end, diff = _find_diff(lines, at, name)
    body = _text(lines[at:body_end], at, name)
    trailers = _trailers(body, at)
    return Header(author, email, date, subject, "\n".join(body), trailers), diff


def _fields(lines: list[bytes], name: str) -> tuple[dict[str, tuple[str, int]], int]:
    """Return the unfolded mail header, lower-case key to (value, line), and the first line after the empty one."""
    at = 1 if lines and lines[0].startswith(b"From ") else 0
    fields: dict[str, tuple[str, int]] = {}
    key = ""
    while at < len(lines) and lines[at] != b"":
        line = lines[at]
        if at == _LONGEST_HEADER:
            raise BadPatch(f"the header has more than {_LONGEST_HEADER} lines", where=Where(name, at + 1))
        if line.endswith(b"\r"):
            raise BadPatch(
                "the line ends with CRLF",
                where=Where(name, at + 1),
                hint="convert the file to LF; patchctl takes a patch's bytes as they are",
            )
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadPatch("the header is not UTF-8", where=Where(name, at + 1)) from error
        if text[0] in " \t" and key:
            value, where = fields[key]
            fields[key] = (value + " " + text.strip(BLANKS), where)
            _check_length(fields[key][0], name, at)
        else:
            key, colon, value = text.partition(":")
            key = key.lower()
            if not colon or (
                key not in _KNOWN and not key.startswith("x-") and key not in ("to", "cc", "in-reply-to", "references")
            ):
                hint = "a patch file starts with `From:`, `Date:` and `Subject:`, as `git format-patch` writes it"
                raise BadPatch("not a mail header", where=Where(name, at + 1), hint=hint)
            if key in fields and key in _KNOWN:
                raise BadPatch(f"duplicate `{key}` in the header", where=Where(name, at + 1))
            fields[key] = (value.strip(BLANKS), at + 1)
            _check_length(value, name, at)
        if "\0" in text:
            raise BadPatch("the header contains a NUL, where git would end the line", where=Where(name, at + 1))
        at += 1
    return fields, at + 1


def _check_length(value: str, name: str, at: int) -> None:
    if len(value) > _LONGEST_FIELD:
        raise BadPatch(f"a header field is longer than {_LONGEST_FIELD} characters", where=Where(name, at + 1))


def _check_encoding(fields: dict[str, tuple[str, int]], name: str) -> None:
    kind, line = fields.get("content-type", ("text/plain; charset=UTF-8", 1))
    if not re.fullmatch(r'(?i)text/plain(; *charset="?utf-8"?)?', kind):
        raise BadPatch("only plain text in UTF-8 is supported", where=Where(name, line))
    transfer, line = fields.get("content-transfer-encoding", ("8bit", 1))
    if transfer.lower() not in ("7bit", "8bit", "binary"):
        raise BadPatch(
            "base64 and quoted-printable mails are not supported: use `git format-patch`", where=Where(name, line)
        )


def _author(fields: dict[str, tuple[str, int]], name: str) -> tuple[str, str]:
    if "from" not in fields:
        raise BadPatch("no author: `From: Name <address>` is missing", where=Where(name, 1))
    value, line = fields["from"]
    try:
        return read_author(decode_words(value))
    except ValueError as error:
        raise BadPatch(str(error), where=Where(name, line)) from error


def _date(fields: dict[str, tuple[str, int]], name: str) -> str:
    """Return the date in git's raw format: seconds since the epoch and a zone."""
    if "date" not in fields:
        raise BadPatch(
            "no date: `Date:` is missing", where=Where(name, 1), hint="without one, commit ids differ on every machine"
        )
    value, line = fields["date"]
    match = _DATE.fullmatch(value)
    if match is None or match[2] not in _MONTHS:
        raise BadPatch("the date must read like `Sat, 21 Nov 2026 00:00:00 +0000`", where=Where(name, line))
    zone = match[7] if match[7] != "-0000" else "+0000"
    year, month, day = int(match[3]), _MONTHS[match[2]], int(match[1])
    hour, minute, second = int(match[4]), int(match[5]), int(match[6])
    if not 1970 <= year <= 2099:
        raise BadPatch("git only supports the years 1970 to 2099", where=Where(name, line))
    in_month = 1 <= day <= calendar.monthrange(year, month)[1]
    in_day = hour < 24 and minute < 60 and second < 60 and int(zone[1:3]) < 24 and int(zone[3:]) < 60
    offset = (int(zone[1:3]) * 60 + int(zone[3:])) * 60 * (-1 if zone[0] == "-" else 1)
    seconds = calendar.timegm((year, month, day, hour, minute, second, 0, 0, 0)) - offset
    if not (in_month and in_day) or seconds < 0:
        raise BadPatch("no such date", where=Where(name, line))
    return f"{seconds} {zone}"


def _subject(fields: dict[str, tuple[str, int]], name: str) -> str:
    if "subject" not in fields:
        raise BadPatch(
            "no `Subject:` in the header", where=Where(name, 1), hint="`patchctl export` writes complete headers"
        )
    value, line = fields["subject"]
    try:
        subject = read_subject(decode_words(value))
    except ValueError as error:
        raise BadPatch(str(error), where=Where(name, line)) from error
    if not subject or "\0" in subject:
        raise BadPatch("the subject is empty or contains a NUL", where=Where(name, line))
    return subject


def _find_diff(lines: list[bytes], start: int, name: str) -> tuple[int, int]:
    """Return where the message ends and where the first `diff --git` is; git drops what is between, and so do we."""
    end = start
    while end < len(lines) and not ends_message(lines[end]):
        _check_one_mail(lines[end], name, end)
        end += 1
    diff = end
    while diff < len(lines) and not lines[diff].startswith(b"diff --git "):
        line = lines[diff]
        _check_one_mail(line, name, diff)
        if line.startswith((b"+++ ", b"@@ -", b"Index: ", b"diff -", b"--- a/", b"--- /dev/null")):
            raise BadPatch(
                "a diff must start with `diff --git`", where=Where(name, diff + 1), hint="make patches with git"
            )
        diff += 1
    return end, diff


def _check_one_mail(line: bytes, name: str, at: int) -> None:
    if splits_mails(line):
        hint = "one patch per file: `git am` would read this line as the start of another mail"
        raise BadPatch(
            "the line looks like an mbox separator (`From ` and a time)", where=Where(name, at + 1), hint=hint
        )


def _text(lines: list[bytes], start: int, name: str) -> list[str]:
    try:
        text = [line.decode("utf-8") for line in lines]
    except UnicodeDecodeError as error:
        raise BadPatch("the message is not UTF-8", where=Where(name, start + 1)) from error
    first = next((i for i, line in enumerate(text) if line.strip()), None)
    if first is not None and obeyed_in_body(text[first]):
        where = Where(name, start + first + 1)
        raise BadPatch("the message starts with a mail header, which `git am` would act on", where=where)
    for number, line in enumerate(text, start + 1):
        if line.endswith("\r"):
            raise BadPatch(
                "the line ends with CRLF",
                where=Where(name, number),
                hint="convert the file to LF; patchctl takes a patch's bytes as they are",
            )
        if "\0" in line:
            raise BadPatch("the message contains a NUL", where=Where(name, number))
    return text


def _trailers(body: list[str], start: int) -> dict[str, list[Trailer]]:
    """Return the `Key: value` lines of the last paragraph; an indented line continues the one before it."""
    end = len(body)
    while end and not body[end - 1].strip():
        end -= 1
    first = end
    while first and body[first - 1].strip():
        first -= 1
    entries: list[tuple[str, list[str], int]] = []
    for number in range(first, end):
        line = body[number]
        match = _TRAILER.fullmatch(line.rstrip())
        if match:
            entries.append((match[1], [match[2]], start + number + 1))
        elif line[:1] in (" ", "\t") and entries:
            entries[-1][1].append(line.strip())
        else:
            return {}  # a paragraph of prose
    found: dict[str, list[Trailer]] = {}
    for key, parts, number in entries:
        found.setdefault(key, []).append(Trailer(" ".join(parts), number))
    return found


BLANKS = " \t\r\n"
"""git's isspace(). Python's strip() and split() also remove form feeds and Unicode blanks, which git keeps."""

_RUN = re.compile("[ \t\r\n]+")
_ENCODED = re.compile(r"=\?([^?]*)\?([^?])\?(.*?)\?=", re.DOTALL)
_HEX = re.compile(rb"=([0-9A-Fa-f]{2})")
_CHARSETS = {"utf-8", "utf8"}  # others need iconv; a git built without it leaves the bytes as they are
# ident.c strips these from both ends of a name or address; the full stop only before git 2.46 or so.
_CRUD = "".join(map(chr, range(33))) + ".,:;<>\"\\'"
_LONGEST_NAME = 60


def join_blanks(text: str) -> str:
    """cleanup_space() and strbuf_trim(): collapse runs of blanks into one space and strip both ends."""
    return _RUN.sub(" ", text).strip(BLANKS)


def decode_words(text: str) -> str:
    """decode_header(): decode RFC 2047 words and drop blanks between two of them. Raises ValueError."""
    out: list[str] = []
    at = 0
    while (found := text.find("=?", at)) >= 0:
        match = _ENCODED.match(text, found)
        if match is None:
            raise ValueError("an encoded word is incomplete")  # git's mailinfo fails here
        between = text[at:found]
        if at == 0 or between.strip(BLANKS):
            out.append(between)
        out.append(_decode_word(match[1], match[2], match[3]))
        at = match.end()
    return "".join(out) + text[at:]


def _decode_word(charset: str, encoding: str, word: str) -> str:
    if charset.lower() not in _CHARSETS:
        raise ValueError(f"unsupported character set {charset[:40]!a}: use UTF-8")
    try:
        if encoding in "bB":
            data = base64.b64decode(word, validate=True)
        elif encoding in "qQ":
            data = _quoted(word.encode("ascii"))
        else:
            raise ValueError("an encoded word is neither B nor Q")
        return data.decode(charset)
    except (UnicodeError, binascii.Error) as error:
        raise ValueError("an encoded word cannot be decoded") from error


def _quoted(word: bytes) -> bytes:
    data = _HEX.sub(lambda m: bytes([int(m[1], 16)]), word.replace(b"_", b" "))
    if word.count(b"=") != len(_HEX.findall(word)):
        raise ValueError("an encoded word has a broken =XX escape")
    return data


def read_author(text: str) -> tuple[str, str]:
    """Return name and address of a decoded `From:` value, as handle_from() and then fmt_ident() leave them.

    Raises ValueError where the value is invalid, or where git would change it.
    """
    match = re.fullmatch(r"(.*?)<([^<> ]*)>", join_blanks(text))
    if match is None:
        raise ValueError("the author must read `From: Name <address>`")
    address = match[2]
    if not address or set(address) & set("\"\\(),;:'") or any(ord(c) < 33 for c in address):
        raise ValueError("the author's address is empty or has a character that git drops")
    if address.strip(_CRUD) != address:
        raise ValueError("the author's address starts or ends with punctuation, which git would drop")
    name = match[1]
    if "@" not in address:
        if set(name) & set('"\\('):
            raise ValueError("the author's name is quoted and the address has no @: git does not unquote such a name")
        name = name.strip(BLANKS)
    else:
        name = join_blanks(_unquote(name))
        if name.startswith("(") and name.endswith(")"):
            name = name[1:-1]
    _check_name(name)
    return name, address


def _check_name(name: str) -> None:
    if not name:
        raise ValueError("the author's name is empty")
    if set(name) & set("@<>\0"):
        raise ValueError("the author's name contains @, < or >: `git am` would use the address as the name")
    if len(name.encode("utf-8")) > _LONGEST_NAME:
        raise ValueError(
            f"the author's name is longer than {_LONGEST_NAME} bytes: `git am` would use the address instead"
        )
    if name.strip(_CRUD) != name:
        raise ValueError(
            "the author's name starts or ends with punctuation or a blank, which git versions treat differently"
        )


def _unquote(text: str) -> str:
    """unquote_quoted_pair(): remove double quotes, and backslashes inside quotes and (comments); comments stay."""
    out: list[str] = []
    quoted = False
    depth = 0
    letters = iter(text)
    for letter in letters:
        if letter == "\\" and (quoted or depth):
            out.append(next(letters, ""))
        elif letter == '"' and not depth:
            quoted = not quoted
        else:
            if not quoted:
                depth = max(0, depth + {"(": 1, ")": -1}.get(letter, 0))
            out.append(letter)
    if quoted or depth:
        raise ValueError("a quote or bracket in the author's name is not closed")  # git would read past the line
    return "".join(out)


def read_subject(text: str) -> str:
    """cleanup_subject(): strip leading `Re:`, blanks, colons and bracketed parts, then collapse blanks."""
    while text:
        if text[:3].lower() == "re:" and len(text) > 3:
            text = text[3:]
        elif text[0] in " \t:":
            text = text[1:]
        elif text[0] == "[" and "]" in text:
            text = text[text.index("]") + 1 :]
        else:
            break
    return join_blanks(text)


def splits_mails(line: bytes) -> bool:
    """mailsplit's is_from_line(): whether `git am` would start a new mail at this line."""
    if not line.startswith(b"From ") or len(line) < 19:
        return False
    colon = line.rfind(b":", 5, -1)
    if colon < 9:
        return False
    around = (line[colon - 4 : colon - 3], line[colon - 2 : colon], line[colon + 1 : colon + 3])
    year = re.match(rb"[ \t\r\f\v]*\+?(\d+)", line[colon + 3 :])
    return all(part.isdigit() for part in around) and len(around[2]) == 2 and year is not None and int(year[1]) > 90


def ends_message(line: bytes) -> bool:
    """patchbreak(): whether this line is `---` alone or looks like the start of a diff."""
    if line.startswith((b"diff -", b"Index: ")):
        return True
    if not line.startswith(b"---"):
        return False
    return line[3:].strip(b" \t\r\n") == b"" or (line[3:4] == b" " and line[4:5] not in (b"", b" ", b"\t", b"\r"))


def obeyed_in_body(line: str) -> bool:
    """check_inbody_header(): whether `git am` reads the message's first line as a header, or drops it."""
    return re.match(r"(?i:from|date|subject):|\[PATCH\][ \t\r]|\[PATCH\]$|>From[ \t\r]", line) is not None
