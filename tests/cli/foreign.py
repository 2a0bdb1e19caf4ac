"""A repository with a line of commits of every kind, and their mails in every form that people send them in."""

from __future__ import annotations

import base64
import quopri
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from distribution import GIT_ENV, Upstream, git, write_files

AUTHOR = {"GIT_AUTHOR_NAME": "patchctl", "GIT_AUTHOR_EMAIL": "patchctl@localhost"}


def module(name: str, count: int = 30) -> str:
    return "".join(f"def {name}_{n}(value):\n    return value + {n}\n\n\n" for n in range(count))


FILES = {f"zoo/{name}.py": module(name) for name in ("ape", "bear", "cat", "dog", "elk")}
FILES |= {
    "zoo/__init__.py": "",
    "run.sh": "#!/bin/sh\nexec true\n",
    "docs/zoo.txt": "r\u00e9sum\u00e9\n",
    "old.txt": "old\n",
}
ZOO = Upstream("zoo", "v1", FILES)
POND = Upstream("pond", "v1", {"pond/__init__.py": "", "pond/frog.py": module("frog")})


class Repository:
    """A clone of an upstream in which a test makes commits, and turns them into mails."""

    def __init__(self, origin: Path, folder: Path) -> None:
        self.folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", str(origin), str(folder)], env=GIT_ENV, check=True)
        self.base = git(folder, "rev-parse", "HEAD").strip()

    def git(self, *args: str, env: Mapping[str, str] | None = None, stdin: bytes = b"", check: bool = True) -> bytes:
        done = subprocess.run(
            ["git", "-C", str(self.folder), *args],
            env={**GIT_ENV, **AUTHOR, **(env or {})},
            input=stdin,
            capture_output=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.stdout

    def replace(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert text.count(old) == 1, (file, old)
        path.write_text(text.replace(old, new))

    def commit(self, subject: str, body: str = "It is wanted.", date: int = 1700000000) -> str:
        self.git("add", "--all")
        env = {"GIT_AUTHOR_DATE": f"{date} +0800"}
        self.git("commit", "--quiet", "-m", f"{subject}\n\n{body}", env=env)
        return git(self.folder, "rev-parse", "HEAD").strip()

    def mail(self, commit: str = "HEAD", *args: str) -> bytes:
        """One commit as `git format-patch` writes it."""
        return self.git("format-patch", "-1", "--stdout", *args, commit)

    @property
    def tree(self) -> str:
        return git(self.folder, "rev-parse", "HEAD^{tree}").strip()

    def am(self, mails: list[bytes], *args: str) -> str:
        """The tree that `git am` makes of these mails on the base; an assertion when it refuses one."""
        self.git("checkout", "--quiet", "--detach", self.base)
        file = self.folder.with_name("the mail")  # from a file: git guesses no form of what it reads from a pipe
        for mail in mails:
            file.write_bytes(mail)
            self.git("am", "--quiet", *args, str(file))
        tree = self.tree
        self.git("checkout", "--quiet", "main")
        return tree


def split(mail: bytes) -> tuple[bytes, bytes, bytes]:
    """Header (with the From line), message with its `---` and stat, diff."""
    head, _, rest = mail.partition(b"\n\n")
    at = rest.index(b"diff --git ")
    return head, rest[:at], rest[at:]


def crlf(mail: bytes) -> bytes:
    return mail.replace(b"\n", b"\r\n")


def no_blank_line(mail: bytes) -> bytes:
    head, body, diff = split(mail)
    return head + b"\n" + body.lstrip(b"\n") + diff


def without(field: str) -> Callable[[bytes], bytes]:
    def change(mail: bytes) -> bytes:
        return re.sub(rb"(?m)^%s: .*\n" % field.encode(), b"", mail, count=1)

    return change


def encoded(kind: str) -> Callable[[bytes], bytes]:
    """The body in base64 or quoted-printable."""

    def change(mail: bytes) -> bytes:
        head, body, diff = split(mail)
        head = re.sub(rb"\n(Content-|MIME-).*", b"", head)
        data = base64.encodebytes(body + diff) if kind == "base64" else quopri.encodestring(body + diff)
        fields = f'MIME-Version: 1.0\nContent-Type: text/plain; charset="utf-8"\nContent-Transfer-Encoding: {kind}'
        return head + b"\n" + fields.encode() + b"\n\n" + data

    return change


def multipart(mail: bytes) -> bytes:
    """Message and patch as two parts, as mail programs attach files."""
    head, body, diff = split(mail)
    part = b"--=_b\nContent-Type: text/%s; charset=utf-8\n\n"
    fields = b'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="=_b"'
    return head + b"\n" + fields + b"\n\n" + part % b"plain" + body + part % b"x-patch" + diff + b"--=_b--\n"


def flowed(mail: bytes) -> bytes:
    """A program that writes format=flowed: lines that begin with a blank get another one, blank context lines lose theirs."""
    head, body, diff = split(mail)
    lines = [b"" if x == b" " else b" " + x if x[:1] == b" " else x for x in (body + diff).split(b"\n")]
    return head + b"\nContent-Type: text/plain; charset=utf-8; format=flowed\n\n" + b"\n".join(lines)


def in_charset(charset: str, text: str, *, named: bool = True) -> Callable[[bytes], bytes]:
    """A message with `text` in a character set, which the mail names or does not."""

    def change(mail: bytes) -> bytes:
        head, body, diff = split(mail)
        fields = f"\nContent-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: 8bit" if named else ""
        return head + fields.encode() + b"\n\n" + text.encode(charset) + b"\n\n" + body + diff

    return change


def in_body_from(mail: bytes) -> bytes:
    """The list's robot sends it; the author stands in the body."""
    mail = re.sub(rb"(?m)^From: .*$", b"From: list robot <robot@example.com>", mail, count=1)
    return mail.replace(b"\n\n", b"\n\nFrom: patchctl <patchctl@localhost>\n\n", 1)


def no_index(mail: bytes) -> bytes:
    return re.sub(rb"(?m)^index .*\n", b"", mail)


def false_index(mail: bytes) -> bytes:
    return re.sub(rb"(?m)^(index [0-9a-f]+\.\.)[0-9a-f]+", rb"\g<1>" + b"d" * 40, mail)


def gnu(mail: bytes) -> bytes:
    """As `diff -ru` has it: a command line, names with times, no index."""
    mail = re.sub(rb"(?m)^diff --git a/(\S+) b/\S+\n(index .*\n)?", rb"diff -ru a/\1 b/\1\n", mail)
    return re.sub(rb"(?m)^(---|\+\+\+) ([ab]/\S+)$", rb"\1 \2\t2026-11-21 10:00:00.000000000 +0800", mail)


def with_footer(mail: bytes) -> bytes:
    return mail + b"\n_______________________________________________\npatches mailing list\n"


def stgit(mail: bytes) -> bytes:
    subject = re.search(rb"Subject: \[PATCH.*?\] (.*)", mail)
    assert subject is not None
    _, body, diff = split(mail)
    fields = re.findall(rb"(?m)^(?:From|Date): .*$", mail)
    return subject[1] + b"\n\n" + b"\n".join(fields) + b"\n\n" + body + diff


def mercurial(mail: bytes) -> bytes:
    subject = re.search(rb"Subject: \[PATCH.*?\] (.*)", mail)
    assert subject is not None
    _, body, diff = split(mail)
    head = b"# HG changeset patch\n# User patchctl <patchctl@localhost>\n# Date 1700000000 -28800\n# Node ID 0\n"
    return head + subject[1] + b"\n\n" + body + diff


def write_all(folder: Path, mails: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, data in mails.items():
        (folder / name).write_bytes(data)
    return folder


__all__ = ["POND", "ZOO", "Repository", "write_files"]
