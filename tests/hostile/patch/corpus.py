"""Bad patch files, one fault each; the name says the fault. Made here as text, so that each can be read beside what is wanted."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

FROM = b"From: A U Thor <author@example.com>\n"
DATE = b"Date: Sat, 21 Nov 2026 00:00:00 +0000\n"
SUBJECT = b"Subject: [PATCH] change\n"
HEAD = FROM + DATE + SUBJECT + b"\nWhy.\n---\n"
AT = HEAD.count(b"\n") + 1
"""The line on which what follows HEAD begins."""

BASE = {
    b"f": b"".join(b"line %d\n" % i for i in range(1, 21)),
    b"same": b"def f():\n    x = 1\n    return x\n\n\n" * 6,
    b"dir/g": b"a\nb\n",
    b"bin": b"\0\1\2" * 30,
    b"empty": b"",
    b"Case": b"x\n",
    "caf\u00e9".encode(): b"x\n",
}
ZERO = b"0" * 40


@dataclass(frozen=True)
class Bad:
    """A series of patch files, the last of which is at fault: with which line and words it must be refused, and how."""

    patches: tuple[bytes, ...]
    line: int | None
    message: str
    kind: str = "patch"


def bad(diff: bytes, line: int | None, message: str, *, head: bytes = HEAD, kind: str = "patch") -> Bad:
    """`line` counts from the diff's first line, which is 1."""
    return Bad((head + diff,), None if line is None else line + head.count(b"\n"), message, kind)


def series(*diffs: bytes, line: int, message: str, kind: str = "patch") -> Bad:
    return Bad(tuple(HEAD + d for d in diffs), line + AT - 1, message, kind)


def mail(data: bytes, line: int | None, message: str) -> Bad:
    return Bad((data,), line, message)


def modify(
    name: bytes = b"f",
    *,
    hunk: bytes = b"@@ -1,4 +1,4 @@\n line 1\n-line 2\n+LINE 2\n line 3\n line 4\n",
    index: bytes = b"",
) -> bytes:
    return b"diff --git a/%s b/%s\n%s--- a/%s\n+++ b/%s\n%s" % (name, name, index, name, name, hunk)


def add(name: bytes, mode: bytes = b"100644", content: bytes = b"x") -> bytes:
    quoted_a, quoted_b = (
        b'"%s/%s"' % (s, name[1:-1]) if name.startswith(b'"') else b"%s/%s" % (s, name) for s in (b"a", b"b")
    )
    return b"diff --git %s %s\nnew file mode %s\n--- /dev/null\n+++ %s\n@@ -0,0 +1 @@\n+%s\n" % (
        quoted_a,
        quoted_b,
        mode,
        quoted_b,
        content,
    )


def literal(data: bytes, announced: int | None = None) -> bytes:
    packed = zlib.compress(data, 9)
    lines = []
    for at in range(0, len(packed), 52):
        piece = packed[at : at + 52]
        letter = bytes([64 + len(piece) if len(piece) <= 26 else 70 + len(piece)])
        lines.append(letter + base64.b85encode(piece, pad=True))
    return b"literal %d\n%s\n\n" % (len(data) if announced is None else announced, b"\n".join(lines))


def binary(block: bytes, index: bytes = b"index %s..%s\n" % (ZERO, b"1" * 40), name: bytes = b"new.bin") -> bytes:
    return b"diff --git a/%s b/%s\nnew file mode 100644\n%sGIT binary patch\n%s" % (name, name, index, block)


OUTSIDE: dict[str, Bad] = {
    "dotdot": bad(add(b"../evil"), 1, "leaves the tree"),
    "dotdot in the middle": bad(add(b"dir/../../evil"), 1, "leaves the tree"),
    "dotdot at the end": bad(add(b"dir/.."), 1, "leaves the tree"),
    "dot": bad(add(b"./evil"), 1, "leaves the tree"),
    "absolute name": bad(add(b"/etc/evil"), 1, "is absolute"),
    "double slash": bad(add(b"dir//evil"), 1, "empty component"),
    "trailing slash": bad(add(b"dir/"), 1, "empty component"),
    "backslash dotdot": bad(add(b'"..\\\\evil"'), 1, "backslash"),
    "drive letter": bad(add(b"C:/evil"), 1, "is absolute"),
    "rename to outside": bad(
        b"diff --git a/f b/../f\nsimilarity index 100%\nrename from f\nrename to ../f\n", 1, "leaves the tree"
    ),
    "rename with a tab behind the name": bad(
        b"diff --git a/f b/n\nsimilarity index 100%\nrename from f\t\nrename to n\n", 1, "does not name"
    ),
    "rename from outside": bad(
        b"diff --git a/../f b/f\nsimilarity index 100%\nrename from ../f\nrename to f2\n", 1, "does not name"
    ),
    "copy to outside": bad(
        b"diff --git a/f b/../f\nsimilarity index 100%\ncopy from f\ncopy to ../f\n", 1, "leaves the tree"
    ),
    "copy from outside": bad(
        b"diff --git a/../x b/f2\nsimilarity index 100%\ncopy from ../x\ncopy to f2\n", 1, "leaves the tree"
    ),
    "deletes outside": bad(
        b"diff --git a/../f b/../f\ndeleted file mode 100644\n--- a/../f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
        1,
        "leaves the tree",
    ),
    "octal dotdot": bad(add(b'"\\056\\056/evil"'), 1, "leaves the tree"),
    "symlink, then a file through it, in one patch": bad(
        add(b"link", b"120000", b"/tmp") + add(b"link/evil"), 1, "regular files only"
    ),
    "symlink, then a file through it, across two patches": series(
        add(b"link", b"120000", b"/tmp"), line=1, message="regular files only"
    ),
    "file below a file": bad(add(b"f/evil"), 1, "cannot be a file and a folder", kind="does-not-apply"),
    "file where a folder is": bad(add(b"dir"), 1, "cannot be a file and a folder", kind="does-not-apply"),
    "file below a new file": bad(
        add(b"new") + add(b"new/evil"), 7, "cannot be a file and a folder", kind="does-not-apply"
    ),
}

EXECUTED: dict[str, Bad] = {
    ".git": bad(add(b".git/config"), 1, "inside .git"),
    ".git hook": bad(add(b".git/hooks/post-checkout", b"100755"), 1, "inside .git"),
    ".GIT": bad(add(b".GIT/config"), 1, "inside .git"),
    ".git with a trailing dot": bad(add(b".git./config"), 1, "inside .git"),
    ".git with a trailing blank": bad(add(b".git /config"), 1, "inside .git"),
    ".git of a folder": bad(add(b"dir/.git/hooks/pre-commit"), 1, "inside .git"),
    "GIT~1": bad(add(b"GIT~1/config"), 1, "inside .git"),
    ".git as a stream": bad(add(b".git::$INDEX_ALLOCATION/config"), 1, "inside .git"),
    ".git with a zero-width joiner": bad(add(b'".g\\342\\200\\215it/config"'), 1, "control or formatting"),
    ".git with a byte order mark": bad(add(b'"\\357\\273\\277.git/config"'), 1, "control or formatting"),
    ".git itself": bad(add(b".git"), 1, "inside .git"),
    ".gitattributes": bad(add(b".gitattributes", content=b"* filter=x"), 1, "changes how git treats"),
    ".gitattributes of a folder": bad(add(b"dir/.GitAttributes"), 1, "changes how git treats"),
    ".gitmodules": bad(add(b".gitmodules"), 1, "changes how git treats"),
    ".gitmodules by its short name": bad(add(b"GITMOD~1"), 1, "changes how git treats"),
    "pth": bad(add(b"evil.pth", content=b"import os"), 1, "Python would run it"),
    "pth of a folder": bad(add(b"dir/x.PTH"), 1, "Python would run it"),
    "sitecustomize": bad(add(b"sitecustomize.py"), 1, "Python would run it"),
    "sitecustomize as a package": bad(add(b"sitecustomize/__init__.py"), 1, "Python would run it"),
    "usercustomize below src": bad(add(b"src/usercustomize.py"), 1, "Python would run it"),
    "compiled Python": bad(add(b"dir/__pycache__/g.cpython-311.pyc"), 1, "instead of its source"),
}

MODES: dict[str, Bad] = {
    "symlink": bad(add(b"link", b"120000", b"f"), 1, "mode 120000 is refused"),
    "file becomes a symlink": bad(
        b"diff --git a/f b/f\nold mode 100644\nnew mode 120000\n", 1, "mode 120000 is refused"
    ),
    "gitlink": bad(add(b"sub", b"160000", b"Subproject commit " + b"1" * 40), 1, "mode 160000 is refused"),
    "setuid": bad(add(b"run", b"104755"), 2, "is not one of git's file modes"),
    "sticky": bad(add(b"run", b"101644"), 2, "is not one of git's file modes"),
    "group writable": bad(add(b"run", b"100664"), 2, "is not one of git's file modes"),
    "folder": bad(add(b"run", b"040000"), 2, "is not one of git's file modes"),
    "device": bad(add(b"run", b"020666"), 2, "is not one of git's file modes"),
    "no octal": bad(add(b"run", b"rwxr-x"), 2, "is not one of git's file modes"),
    "too many digits": bad(add(b"run", b"0100644"), 2, "is not one of git's file modes"),
    "old mode alone": bad(b"diff --git a/f b/f\nold mode 100644\n", 1, "no hunk|belong together"),
    "two new modes": bad(b"diff --git a/f b/f\nold mode 100644\nnew mode 100755\nnew mode 100644\n", 4, "duplicate"),
    "mode in the index line as well": bad(
        b"diff --git a/n b/n\nnew file mode 100644\nindex %s..%s 100755\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"
        % (ZERO, b"1" * 40),
        1,
        "names a mode",
    ),
    "new and deleted": bad(
        b"diff --git a/n b/n\nnew file mode 100644\ndeleted file mode 100644\n", 1, "contradict each other"
    ),
    "new and renamed": bad(
        b"diff --git a/f b/n\nnew file mode 100644\nrename from f\nrename to n\n", 1, "contradict each other"
    ),
    "renamed and copied": bad(
        b"diff --git a/f b/n\ncopy from f\ncopy to n\nrename from f\nrename to n\n", 1, "contradict each other"
    ),
    "wrong old mode": bad(
        b"diff --git a/f b/f\nold mode 100755\nnew mode 100644\n",
        1,
        "has mode 100644, the patch is for 100755",
        kind="does-not-apply",
    ),
    "new file without a mode": bad(
        b"diff --git a/n b/n\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n", 1, "'/dev/null', expected 'a/n'"
    ),
}

RUNS_CODE: dict[str, Bad] = {
    "ed script": bad(b"2c\nevil\n.\n!touch /tmp/evil\nw\n", None, "changes nothing|git diff"),
    "ed script behind a section": bad(modify() + b"2c\nevil\n.\n", 10, "ed script"),
    "normal diff": bad(modify() + b"2,3d1\n< x\n", 10, "ed script"),
    "context diff": bad(
        b"*** a/f\n--- b/f\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n", None, "changes nothing|must begin"
    ),
    "unified diff without diff --git": bad(
        b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", 1, "must start with `diff --git`"
    ),
    "CVS index": bad(b"Index: f\n=====\n--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n", 1, "must start with `diff --git`"),
    "combined diff": bad(
        b"diff --cc f\nindex 1,2..3\n--- a/f\n+++ b/f\n@@@ -1,1 -1,1 +1,1 @@@\n- a\n -b\n++c\n",
        1,
        "must start with `diff --git`",
    ),
    "ed script behind names": bad(b"--- a/f\n+++ b/f\n1!touch /tmp/evil\n", 1, "must start with `diff --git`"),
    "ed script for a hunk": bad(modify(hunk=b"1c\nevil\n.\n"), 4, "no hunk follows"),
    "Prereq and Index of GNU patch": bad(
        b"Prereq: 1.0\nIndex: f\n*** f.orig\n--- f\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n",
        None,
        "changes nothing|must start with",
    ),
    "a shell archive": bad(b"#!/bin/sh\ntouch /tmp/evil\n", None, "changes nothing"),
    "a property of Subversion": bad(
        modify() + b"\nProperty changes on: f\n+   svn:executable\n", 10, "not understood|ed script"
    ),
    "a second kind of diff behind the first": bad(
        modify() + b"--- a/dir/g\n+++ b/dir/g\n@@ -1 +1 @@\n-a\n+b\n", 10, "must start with `diff --git`"
    ),
}

BOMBS: dict[str, Bad] = {
    "empty hunk": bad(modify(hunk=b"@@ -0,0 +0,0 @@\n"), 4, "changes nothing"),
    "hunk of context only": bad(modify(hunk=b"@@ -1,2 +1,2 @@\n line 1\n line 2\n"), 4, "changes nothing"),
    "negative count": bad(modify(hunk=b"@@ -1,-4 +1,4 @@\n line 1\n"), 4, "must read"),
    "negative start": bad(modify(hunk=b"@@ --1,4 +1,4 @@\n line 1\n"), 4, "must read"),
    "count of ten digits": bad(modify(hunk=b"@@ -1,9999999999 +1 @@\n line 1\n"), 4, "must read"),
    "huge count": bad(modify(hunk=b"@@ -1,999999999 +1,999999999 @@\n line 1\n-a\n"), 4, "announces 999999999 old"),
    "huge start": bad(
        modify(hunk=b"@@ -999999999 +999999999 @@\n-a\n+b\n"),
        4,
        "has only 20 lines|end of the file",
        kind="does-not-apply",
    ),
    "count too small": bad(
        modify(hunk=b"@@ -1,2 +1,2 @@\n line 1\n-line 2\n+LINE 2\n line 3\n line 4\n"), 8, "not understood"
    ),
    "count too large": bad(
        modify(hunk=b"@@ -1,9 +1,9 @@\n line 1\n-line 2\n+LINE 2\n line 3\n"),
        4,
        "announces 9 old and 9 new lines but has 3 and 3",
    ),
    "zero start with lines": bad(modify(hunk=b"@@ -0,1 +0,1 @@\n-line 1\n+x\n"), 4, "starts before line 1"),
    "overlapping hunks": bad(
        modify(hunk=b"@@ -1,2 +1,2 @@\n line 1\n-line 2\n+x\n@@ -2,2 +2,2 @@\n-line 2\n+y\n line 3\n"), 8, "overlaps"
    ),
    "hunks out of order": bad(
        modify(hunk=b"@@ -9,2 +9,2 @@\n line 9\n-line 10\n+x\n@@ -2,2 +2,2 @@\n-line 2\n+y\n line 3\n"), 8, "overlaps"
    ),
    "a million empty hunks": bad(modify(hunk=b"@@ -0,0 +0,0 @@\n" * 1_000_000), 4, "changes nothing"),
    "many hunks that overlap": bad(modify(hunk=b"@@ -1 +1 @@\n-line 1\n+x\n" * 50_000), 7, "overlaps"),
    "many hunks that are in order": bad(
        modify(hunk=b"".join(b"@@ -%d +%d @@\n-a\n+b\n" % (i, i) for i in range(1, 50_000))),
        4,
        "line 1 of|line 1 is",
        kind="does-not-apply",
    ),
    "many sections without content": bad(b"diff --git a/x b/x\n" * 100_000, 1, "no hunk for"),
    "a very long line": bad(
        modify(hunk=b"@@ -1 +1 @@\n-line 1\n+" + b"x" * (5 << 20) + b"\n"), 6, "a line is longer than 4 MiB"
    ),
    "very long names": bad(
        b"diff --git a/x" + b" b/x" * 300_000 + b"\nold mode 100644\nnew mode 100755\n", 1, "names are longer"
    ),
    "blank lines without end": bad(modify() + b"\n" * 300_000 + b"x\n", 10, "not understood"),
    "a hunk of no sign": bad(modify(hunk=b"@@ -1 +1 @@\n?line 1\n"), 4, "but has 0 and 0"),
    "no newline before any line": bad(
        modify(hunk=b"@@ -1 +1 @@\n\\ No newline at end of file\n-a\n+b\n"), 5, "no line before it"
    ),
    "no newline twice": bad(
        modify(hunk=b"@@ -1 +1 @@\n-a\n\\ No newline at end of file\n\\ No newline at end of file\n+b\n"),
        7,
        "duplicate",
    ),
    "no newline in the middle": bad(
        modify(hunk=b"@@ -1,2 +1,2 @@\n-a\n\\ No newline at end of file\n-b\n+c\n+d\n"),
        4,
        "not after the hunk's last line",
    ),
    "binary that inflates": bad(binary(literal(b"\0" * (65 << 20))), 5, "inflates to more than 64 MiB"),
    "binary that inflates to more than it says": bad(
        binary(literal(b"\0" * (30 << 20), announced=100)), 5, "announces 100 bytes"
    ),
    "binary that says more than it inflates to": bad(binary(literal(b"abc", announced=4)), 5, "announces 4 bytes"),
    "many binaries that inflate together": bad(
        b"".join(binary(literal(b"\0" * (20 << 20)), name=b"n%d.bin" % i) for i in range(4)),
        None,
        "inflates to more than 64 MiB",
    ),
    "binary that announces terabytes": bad(binary(literal(b"x", announced=10**12 - 1)), 5, "inflates to more than"),
    "binary with a negative size": bad(binary(b"literal -5\nzcmZ\n\n"), 5, "expected `literal"),
    "binary with broken base 85": bad(
        binary(b"literal 5\nMc\"2'hhhhhhhhhhhhhhhh\n\n"), None, "does not have the length|base 85"
    ),
    "binary line with another length": bad(binary(b"literal 5\nzcmZ\n\n"), 6, "does not have the length"),
    "binary that overflows base 85": bad(binary(b"literal 5\nD~~~~~\n\n"), 6, "broken base 85"),
    "binary that is not deflated": bad(
        binary(b"literal 5\nE00000-----\n\n"), None, "does not have the length|cannot be inflated"
    ),
    "binary cut short": bad(
        binary(literal(bytes(range(256)) * 9).split(b"\n\n")[0].rsplit(b"\n", 1)[0] + b"\n"), 5, "announces"
    ),
    "binary without full ids": bad(binary(literal(b"\0x"), index=b"index 0000000..1111111\n"), 1, "full ids"),
    "binary without ids": bad(binary(literal(b"\0x"), index=b""), 1, "full ids"),
    "binary and hunks": bad(binary(literal(b"\0x")) + b"@@ -0,0 +1 @@\n+x\n", 1, "must follow `---`"),
    "binary without content": bad(
        b"diff --git a/bin b/bin\nindex 1111111..2222222 100644\nBinary files a/bin and b/bin differ\n",
        3,
        "lacks this binary file's content",
    ),
    "many folded header lines": mail(
        FROM + DATE + b"Subject: x\n" + b" y\n" * 100_000 + b"\n---\n" + modify(), 501, "more than 500 lines"
    ),
    "a very long subject": mail(
        FROM + DATE + b"Subject: " + b"re:" * 1_000_000 + b"\n\n---\n" + modify(), 3, "longer than 20000"
    ),
    "many folded trailer lines": bad(
        modify(b"nowhere"),
        1,
        "nowhere is not in the tree",
        head=FROM + DATE + SUBJECT + b"\nKey: x\n" + b" y\n" * 200_000 + b"---\n",
        kind="does-not-apply",
    ),
}

WRONG_PLACE: dict[str, Bad] = {
    "offset": bad(
        modify(hunk=b"@@ -2,4 +2,4 @@\n line 1\n-line 2\n+LINE 2\n line 3\n line 4\n"),
        4,
        "are at line 1",
        kind="does-not-apply",
    ),
    "offset on the new side": bad(
        modify(hunk=b"@@ -1,4 +2,4 @@\n line 1\n-line 2\n+LINE 2\n line 3\n line 4\n"),
        4,
        "should begin at line 1",
        kind="does-not-apply",
    ),
    "fuzz": bad(
        modify(hunk=b"@@ -1,4 +1,4 @@\n Line 1\n-line 2\n+LINE 2\n line 3\n line 4\n"),
        4,
        "line 1 is 'line 1', the patch expects 'Line 1'",
        kind="does-not-apply",
    ),
    "blanks differ": bad(
        modify(hunk=b"@@ -1,4 +1,4 @@\n line 1 \n-line 2\n+LINE 2\n line 3\n line 4\n"),
        4,
        "expects 'line 1 '",
        kind="does-not-apply",
    ),
    "line ends differ": bad(
        modify(hunk=b"@@ -1,4 +1,4 @@\n line 1\r\n-line 2\r\n+LINE 2\r\n line 3\r\n line 4\r\n"),
        4,
        r"expects 'line 1\\r'",
        kind="does-not-apply",
    ),
    "repeated context in the wrong copy": bad(
        modify(b"same", hunk=b"@@ -7,5 +7,5 @@\n \n def f():\n-    x = 1\n+    x = 2\n     return x\n \n"),
        4,
        "are at line",
        kind="does-not-apply",
    ),
    "wrong preimage id": bad(
        modify(index=b"index %s..%s 100644\n" % (b"1" * 40, b"2" * 40)), 1, "is for 111111111111", kind="does-not-apply"
    ),
    "wrong postimage id": bad(
        modify(index=b"index c4352f8..%s 100644\n" % (b"2" * 40)), 1, "promises 222222222222", kind="does-not-apply"
    ),
    "zeros as the preimage of a file that is there": bad(
        modify(index=b"index %s..%s 100644\n" % (ZERO, b"2" * 40)), 1, "zeros mean no file"
    ),
    "new file with a preimage": bad(
        b"diff --git a/n b/n\nnew file mode 100644\nindex %s..%s\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"
        % (b"1" * 40, b"2" * 40),
        1,
        "zeros mean no file",
    ),
    "file that is not there": bad(modify(b"nowhere"), 1, "nowhere is not in the tree", kind="does-not-apply"),
    "new file that is there": bad(add(b"f"), 1, "f already exists", kind="does-not-apply"),
    "new empty file that is there": bad(
        b"diff --git a/f b/f\nnew file mode 100644\n", 1, "f already exists", kind="does-not-apply"
    ),
    "deletion that leaves lines": bad(
        b"diff --git a/dir/g b/dir/g\ndeleted file mode 100644\n--- a/dir/g\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
        5,
        "no trailing context",
        kind="does-not-apply",
    ),
    "deletion of a file that is not empty": bad(
        b"diff --git a/f b/f\ndeleted file mode 100644\n", 1, "is not empty", kind="does-not-apply"
    ),
    "end of file expected too early": bad(
        modify(hunk=b"@@ -1,2 +1,2 @@\n line 1\n-line 2\n+x\n"), 4, "no trailing context", kind="does-not-apply"
    ),
    "no newline where there is one": bad(
        modify(b"dir/g", hunk=b"@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"),
        4,
        "continues where the patch expects its end",
        kind="does-not-apply",
    ),
    "no newline in the middle of the result": bad(
        modify(b"dir/g", hunk=b"@@ -1,1 +1,1 @@\n-a\n+c\n\\ No newline at end of file\n"),
        4,
        "without a newline would end up in the middle",
        kind="does-not-apply",
    ),
    "second patch for the tree before the first": series(
        modify(), modify(), line=4, message="line 2 is 'LINE 2'", kind="does-not-apply"
    ),
}

NAMES: dict[str, Bad] = {
    "control character": bad(add(b'"a\\033[31m"'), 1, "control or formatting"),
    "newline": bad(add(b'"a\\nb"'), 1, "control or formatting"),
    "NUL": bad(add(b'"a\\000b"'), 1, "contains a NUL"),
    "carriage return": bad(add(b'"a\\rb"'), 1, "control or formatting"),
    "bidirectional override": bad(add(b'"a\\342\\200\\256b"'), 1, "control or formatting"),
    "invalid UTF-8": bad(add(b'"a\\377"'), 1, "is not UTF-8"),
    "invalid UTF-8, not quoted": bad(add(b"a\xff"), 1, "is not UTF-8"),
    "overlong UTF-8": bad(add(b'"\\300\\256\\300\\256/x"'), 1, "is not UTF-8"),
    "octal escape over 255": bad(add(b'"a\\777"'), 1, "differ|does not name|is due"),
    "octal escape with a sign": bad(add(b'"a\\+12"'), 1, "differ|does not name|is due"),
    "octal escape of two digits": bad(add(b'"a\\12"'), 1, "differ|does not name|is due"),
    "unknown escape": bad(add(b'"a\\qb"'), 1, "differ|does not name|is due"),
    "no closing quote": bad(b'diff --git "a/x "b/x\nnew file mode 100644\n', 1, "differ"),
    "text behind the quote": bad(b'diff --git "a/x" "b/x" y\nnew file mode 100644\n', 1, "differ"),
    "part over 255 bytes": bad(add(b"x" * 256), 1, "longer than 255 bytes"),
    "part over 255 bytes in UTF-8": bad(add("é".encode() * 128), 1, "longer than 255 bytes"),
    "more than 100 folders": bad(add(b"d/" * 101 + b"x"), 1, "folders deep"),
    "path over 4000 bytes": bad(add(b"x/" * 2100 + b"x"), 1, "longer than 4000 bytes"),
    "case twin": bad(add(b"CASE"), 1, "collide where case is ignored", kind="does-not-apply"),
    "case twins in one patch": bad(
        add(b"new.py") + add(b"NEW.py"), 7, "collide where case is ignored", kind="does-not-apply"
    ),
    "case twin across two patches": series(
        add(b"new.py"), add(b"New.py"), line=1, message="collide where case is ignored", kind="does-not-apply"
    ),
    "folder that is a twin of a folder": series(
        add(b"pkg/a.py"), add(b"PKG/c.py"), line=1, message="collide where case is ignored", kind="does-not-apply"
    ),
    "folder that is a twin of a file": series(
        add(b"pkg"), add(b"PKG/c.py"), line=1, message="collide where case is ignored", kind="does-not-apply"
    ),
    "file that is a twin of a folder": series(
        add(b"pkg/a.py"), add(b"PKG"), line=1, message="collide where case is ignored", kind="does-not-apply"
    ),
    "other Unicode form": bad(add(b'"cafe\\314\\201"'), 1, "collide where case is ignored", kind="does-not-apply"),
    "Windows device": bad(add(b"dir/CON"), 1, "device on Windows"),
    "Windows device with a suffix": bad(add(b"aux.py"), 1, "device on Windows"),
    "empty name": bad(b"diff --git a/ b/\nnew file mode 100644\n", 1, "empty component"),
}

HEADERS: dict[str, Bad] = {
    "names of diff --git differ": bad(
        modify().replace(b"b/f\n---", b"b/dir/g\n---"), 1, "names of `diff --git` differ"
    ),
    "--- names another file": bad(modify().replace(b"--- a/f", b"--- a/dir/g"), 1, "'a/dir/g', expected 'a/f'"),
    "+++ names another file": bad(modify().replace(b"+++ b/f", b"+++ b/dir/g"), 1, "'b/dir/g', expected 'b/f'"),
    "both name another file": bad(
        modify().replace(b"--- a/f\n+++ b/f", b"--- a/dir/g\n+++ b/dir/g"), 1, "expected 'a/f'"
    ),
    "/dev/null on both sides": bad(
        modify().replace(b"--- a/f\n+++ b/f", b"--- /dev/null\n+++ /dev/null"), 1, "'/dev/null', expected"
    ),
    "/dev/null without a new file": bad(modify().replace(b"--- a/f", b"--- /dev/null"), 1, "'/dev/null', expected"),
    "no prefixes": bad(modify().replace(b"a/f", b"f").replace(b"b/f", b"f"), 1, "differ"),
    "--- without +++": bad(b"diff --git a/f b/f\n--- a/f\n@@ -1 +1 @@\n-a\n+b\n", 3, "must be followed by"),
    "names without a hunk": bad(b"diff --git a/f b/f\n--- a/f\n+++ b/f\n", 4, "no hunk follows"),
    "hunk without names": bad(b"diff --git a/f b/f\n@@ -1 +1 @@\n-line 1\n+x\n", 1, "must follow `---`"),
    "section without anything": bad(b"diff --git a/f b/f\n", 1, "no hunk for 'f'"),
    "index and no hunk": bad(b"diff --git a/f b/f\nindex 1111111..2222222 100644\n", 1, "no hunk for 'f'"),
    "broken index line": bad(modify(index=b"index zz..yy\n"), 2, "must read `index"),
    "two index lines": bad(modify(index=b"index 1111111..2222222\nindex 1111111..3333333\n"), 3, "duplicate"),
    "two sections for one path": bad(modify() + modify(), 10, "second section for 'f'; the first is at line 7"),
    "modified and renamed": bad(modify() + b"diff --git a/f b/n\nrename from f\nrename to n\n", 10, "second section"),
    "deleted and added": bad(
        b"diff --git a/empty b/empty\ndeleted file mode 100644\n" + add(b"empty"), 3, "second section"
    ),
    "renamed twice": bad(
        b"diff --git a/f b/n\nrename from f\nrename to n\ndiff --git a/f b/m\nrename from f\nrename to m\n",
        4,
        "second section",
    ),
    "two renames to one name": bad(
        b"diff --git a/f b/n\nrename from f\nrename to n\ndiff --git a/same b/n\nrename from same\nrename to n\n",
        4,
        "second section",
    ),
    "rename from alone": bad(b"diff --git a/f b/n\nrename from f\n", 1, "belong together"),
    "rename that names another file": bad(b"diff --git a/f b/n\nrename from dir/g\nrename to n\n", 1, "does not name"),
    "new file with old lines": bad(
        add(b"n").replace(b"@@ -0,0 +1 @@\n+x", b"@@ -1 +1 @@\n-y\n+x"), 1, "cannot have removed or context lines"
    ),
    "deleted file with new lines": bad(
        b"diff --git a/dir/g b/dir/g\ndeleted file mode 100644\n--- a/dir/g\n+++ /dev/null\n@@ -1,2 +1 @@\n-a\n-b\n+c\n",
        1,
        "cannot have added or context lines",
    ),
    "text between sections": bad(
        modify() + b"hidden\n" + modify(b"dir/g", hunk=b"@@ -1 +1 @@\n-a\n+b\n"), 10, "not understood"
    ),
    "section behind the signature": bad(modify() + b"-- \n2.39.5\n" + modify(b"dir/g"), 10, "not understood"),
    "hunk header with CR": bad(modify().replace(b" @@\n", b" @@\r\n"), 4, "must read"),
    "names with CR": bad(modify().replace(b"a/f b/f\n", b"a/f b/f\r\n"), 1, "differ"),
}

MAILS: dict[str, Bad] = {
    "empty file": mail(b"", 1, "empty"),
    "blank lines only": mail(b"\n\n\n", 1, "empty"),
    "no header": mail(modify(), 1, "not a mail header"),
    "no author": mail(DATE + SUBJECT + b"\n---\n" + modify(), 1, "no author"),
    "no date": mail(FROM + SUBJECT + b"\n---\n" + modify(), 1, "no date"),
    "no subject": mail(FROM + DATE + b"\n---\n" + modify(), 1, "no `Subject:`"),
    "empty subject": mail(FROM + DATE + b"Subject: [PATCH] [x]\n\n---\n" + modify(), 3, "subject is empty"),
    "no hunk": mail(HEAD, None, "changes nothing"),
    "no diff behind a diffstat": mail(HEAD + b" f | 2 +-\n 1 file changed\n", None, "changes nothing"),
    "author without address": mail(b"From: A U Thor\n" + DATE + SUBJECT + b"\n---\n" + modify(), 1, "must read"),
    "author with two addresses": mail(
        b"From: A <a@example.com>, B <b@example.com>\n" + DATE + SUBJECT + b"\n---\n" + modify(), 1, "contains @"
    ),
    "author twice": mail(FROM + FROM + DATE + SUBJECT + b"\n---\n" + modify(), 2, "duplicate"),
    "subject twice": mail(FROM + DATE + SUBJECT + SUBJECT + b"\n---\n" + modify(), 4, "duplicate"),
    "date of words": mail(FROM + b"Date: yesterday\n" + SUBJECT + b"\n---\n" + modify(), 2, "must read like"),
    "date without zone": mail(
        FROM + b"Date: Sat, 21 Nov 2026 00:00:00\n" + SUBJECT + b"\n---\n" + modify(), 2, "must read like"
    ),
    "30 February": mail(
        FROM + b"Date: Mon, 30 Feb 2026 00:00:00 +0000\n" + SUBJECT + b"\n---\n" + modify(), 2, "no such date"
    ),
    "hour 24": mail(
        FROM + b"Date: Sat, 21 Nov 2026 24:00:00 +0000\n" + SUBJECT + b"\n---\n" + modify(), 2, "no such date"
    ),
    "year 1969": mail(
        FROM + b"Date: Wed, 31 Dec 1969 23:59:59 +0000\n" + SUBJECT + b"\n---\n" + modify(), 2, "1970 to 2099"
    ),
    "year 2100": mail(
        FROM + b"Date: Fri, 01 Jan 2100 00:00:00 +0000\n" + SUBJECT + b"\n---\n" + modify(), 2, "1970 to 2099"
    ),
    "before 1970 by its zone": mail(
        FROM + b"Date: Thu, 01 Jan 1970 00:00:00 +0100\n" + SUBJECT + b"\n---\n" + modify(), 2, "no such date"
    ),
    "digits of another script": mail(
        FROM + "Date: Sat, ٢١ Nov 2026 00:00:00 +0000\n".encode() + SUBJECT + b"\n---\n" + modify(), 2, "must read like"
    ),
    "byte order mark": mail(b"\xef\xbb\xbf" + HEAD + modify(), 1, "byte order mark"),
    "UTF-16": mail((HEAD + modify()).decode().encode("utf-16"), 1, "not UTF-8|not a mail header"),
    "CRLF everywhere": mail((HEAD + modify()).replace(b"\n", b"\r\n"), 1, "ends with CRLF"),
    "CRLF in the header": mail(HEAD.replace(b"+0000\n", b"+0000\r\n") + modify(), 2, "ends with CRLF"),
    "CRLF in the message": mail(HEAD.replace(b"Why.\n", b"Why.\r\n") + modify(), 5, "ends with CRLF"),
    "CRLF in the diff only": mail(HEAD + modify().replace(b"\n", b"\r\n"), 7, "differ"),
    "NUL in the message": mail(HEAD.replace(b"Why.", b"Wh\0y."), 5, "NUL"),
    "NUL in the subject": mail(HEAD.replace(b"change", b"=?UTF-8?q?a=00b?="), 3, "NUL"),
    "message not UTF-8": mail(HEAD.replace(b"Why.", b"caf\xe9") + modify(), 5, "not UTF-8"),
    "header not UTF-8": mail(HEAD.replace(b"U Thor", b"caf\xe9") + modify(), 1, "not UTF-8"),
    "another mail behind From": mail(
        HEAD.replace(b"Why.\n", b"Why.\nFrom x Mon Sep 17 00:00:00 2001\n") + modify(), 6, "mbox separator"
    ),
    "another mail behind ---": mail(HEAD + b"From x Mon Sep 17 00:00:00 2001\n" + modify(), 7, "mbox separator"),
    "two mails in one file": mail(
        HEAD + modify() + b"From x Mon Sep 17 00:00:00 2001\n" + HEAD + modify(), 16, "not understood"
    ),
    "From in the body": mail(
        HEAD.replace(b"Why.", b"From: Other <o@example.com>") + modify(), 5, "starts with a mail header"
    ),
    "Subject in the body": mail(HEAD.replace(b"Why.", b"subject: other") + modify(), 5, "starts with a mail header"),
    "Date in the body": mail(HEAD.replace(b"Why.", b"\n\nDate: now") + modify(), 7, "starts with a mail header"),
    "[PATCH] in the body": mail(HEAD.replace(b"Why.", b"[PATCH] other") + modify(), 5, "starts with a mail header"),
    "a diff in the message": mail(HEAD.replace(b"Why.", b"diff -u a b\nno") + modify(), 5, "must start with"),
    "a diff --git in the message": mail(
        HEAD.replace(b"Why.", b"diff --git a/f b/f\nno") + modify(), 5, "not understood|no hunk"
    ),
    "base64": mail(
        FROM + DATE + SUBJECT + b"Content-Transfer-Encoding: base64\n\nV2h5Lg==\n---\n" + modify(), 4, "base64"
    ),
    "quoted-printable": mail(
        FROM + DATE + SUBJECT + b"Content-Transfer-Encoding: quoted-printable\n\nWhy=2E\n---\n" + modify(),
        4,
        "quoted-printable",
    ),
    "another character set": mail(
        FROM + DATE + SUBJECT + b"Content-Type: text/plain; charset=iso-8859-1\n\nWhy.\n---\n" + modify(), 4, "UTF-8"
    ),
    "HTML": mail(FROM + DATE + SUBJECT + b"Content-Type: text/html\n\nWhy.\n---\n" + modify(), 4, "plain text"),
    "multipart": mail(
        FROM + DATE + SUBJECT + b'Content-Type: multipart/mixed; boundary="x"\n\n--x\n\nWhy.\n---\n' + modify(),
        4,
        "plain text",
    ),
    "flowed text": mail(
        FROM
        + DATE
        + SUBJECT
        + b"Content-Type: text/plain; charset=UTF-8; format=flowed; delsp=yes\n\nWhy.\n---\n"
        + modify(),
        4,
        "plain text",
    ),
    "encoded word not complete": mail(HEAD.replace(b"change", b"=?UTF-8?q?change") + modify(), 3, "incomplete"),
    "encoded word of another set": mail(HEAD.replace(b"change", b"=?koi8-r?q?=C1?=") + modify(), 3, "character set"),
    "encoded word not UTF-8": mail(HEAD.replace(b"change", b"=?UTF-8?q?=FF?=") + modify(), 3, "cannot be decoded"),
    "encoded word with broken base64": mail(
        HEAD.replace(b"change", b"=?UTF-8?b?!!?=") + modify(), 3, "cannot be decoded"
    ),
    "encoded author with <": mail(
        HEAD.replace(b"A U Thor", b"=?UTF-8?q?A_=3Cx=40y=3E?=") + modify(), 1, "contains @|must read"
    ),
    "header line that is none": mail(
        FROM + b"evil line\n" + DATE + SUBJECT + b"\n---\n" + modify(), 2, "not a mail header"
    ),
    "unknown header": mail(
        FROM + b"Resent-From: x <x@example.com>\n" + DATE + SUBJECT + b"\n---\n" + modify(), 2, "not a mail header"
    ),
    "blank before the colon": mail(
        FROM + b"Date : Sat, 21 Nov 2026 00:00:00 +0000\n" + SUBJECT + b"\n---\n" + modify(), 2, "not a mail header"
    ),
}

FAMILIES = {
    "outside": OUTSIDE,
    "executed": EXECUTED,
    "modes": MODES,
    "runs code": RUNS_CODE,
    "bombs": BOMBS,
    "wrong place": WRONG_PLACE,
    "names": NAMES,
    "headers": HEADERS,
    "mails": MAILS,
}
