"""git's parsing of mail header values: encoded words, author, subject, and the lines that separate mails.

Ports the parts of git's mailinfo.c, ident.c and builtin/mailsplit.c that decide what a commit says. Python's email
package differs: it drops a no-break space at the end of a subject, which git keeps (verl's history has one), and
joins encoded words differently. Raises ValueError where git versions disagree.
"""

from __future__ import annotations

import base64
import binascii
import re

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


def author(text: str) -> tuple[str, str]:
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


def subject(text: str) -> str:
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
