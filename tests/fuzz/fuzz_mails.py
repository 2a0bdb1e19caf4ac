"""Changes to patch files that keep much of their structure, so that many are nearly right."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from fuzz_world import World
from test_patch_against_git_am import AUTHORS, BODIES, SUBJECTS

Lines = list[bytes]
NAMES = (
    b"text", b"lone", b"pkg/mod.py", b"pkg", b"new.py", b"lone/in.py", b"pkg/sub", b"../x", b"/etc/x", b".git/config",
    b"", b"a b/c d", b"TEXT",
    b"pkg/x b/pkg/x", b"x\ty", b'"text"', b'"\\164ext"', b'"te\\x"', b"./text", b"pkg//mod.py", b"dev/null", b"con",
    b"t\xc3\xa9xt", b"t\xffxt",
    b"link/x", b"link", b"a\\b", b"x" * 300, b"pkg/mod.py ", b".gitattributes", b"a/text", b"text\r",
)  # fmt: skip
MODES = (b"100644", b"100755", b"120000", b"160000", b"100664", b"040000", b"644", b"100777", b"000000", b"100644 ")
HEADERS = (
    b"From: B <b@example.com>", b"From: B", b"Date: Sun, 22 Nov 2026 01:02:03 -0730",
    b"Date: 22 Nov 2026 01:02:03 +0000", b"Date: yesterday",
    b"Date: Thu, 31 Dec 2099 23:59:60 +0000", b"Subject: =?UTF-8?q?caf=C3=A9?=",
    b"Subject: =?UTF-8?B?w6k=?= =?UTF-8?q?_x?=", b"Subject: Re: [x] [y z] s",
    b"Subject:", b"Subject: [PATCH", b"Subject: a\n b\n\tc", b"MIME-Version: 1.0",
    b"Content-Type: text/plain; charset=UTF-8",
    b"Content-Type: text/plain; charset=latin1", b"Content-Type: text/plain; charset=\"utf-8\"",
    b"Content-Transfer-Encoding: 8bit",
    b"Content-Transfer-Encoding: base64", b"Content-Transfer-Encoding: quoted-printable", b"Message-Id: <x@y>",
    b"X-Thing: 1", b" folded",
    b"From abc Mon Sep 17 00:00:00 2001", b">From x", b"To: x@y", b"", b"From: =?UTF-8?q?=C3=89va?= <e@example.com>",
    b"From: \"Q, R\" <q@example.com>",
    b"Author: x", b"X-Patchwork: y", b"References: <a>", b"content-type: TEXT/PLAIN; charset=utf-8",
    b"In-Reply-To: <a>",
)  # fmt: skip
TEXTS = (
    b"---", b"--- ", b"-- ", b"--", b"---\t", b"--- a/text", b"+++ b/text", b"diff --git a/text b/text",
    b"diff -u a b", b"Index: x", b"@@ -1 +1 @@",
    b"@@ -1,2 +1,2 @@ def f", b"@@ -0,0 +1 @@", b"\\ No newline at end of file", b"\\ x", b"", b" ", b"+", b"-",
    b"+x", b"-x", b" x", b"\t", b"\r",
    b"From: C <c@example.com>", b"Signed-off-by: D <d@example.com>", b"From abc Mon Sep 17 00:00:00 2001", b">From x",
    b"GIT binary patch",
    b"literal 3", b"delta 7", b"Binary files a/bin and b/bin differ", b"similarity index 100%", b"rename from text",
    b"rename to moved", b"copy from text",
    b"copy to moved", b"old mode 100644", b"new mode 100755", b"new file mode 100644", b"deleted file mode 100644",
    b"index 1234567..89abcde 100644",
    b"index 0000000..0000000", b"--- /dev/null", b"+++ /dev/null", b"[PATCH] x", b"# comment", b"-- >8 --",
    b"garbage", b"\xff\xfe", b"\x00", b"2.39.5", b"--- ---",
)  # fmt: skip
_STRUCTURE = re.compile(
    rb"diff --git |@@ |--- |\+\+\+ |index |old mode|new mode|rename |copy |similarity|new file|deleted|GIT binary|literal|delta"
)


def mutated(rng: random.Random, world: World) -> bytes:
    """A sample with one to four changes; often its `index` lines go and its counts are put right, so that it may still apply."""
    samples = world.samples if rng.random() < 0.92 else world.hostile
    lines = rng.choice(samples).split(b"\n")
    if rng.random() < 0.5:
        lines = [x for x in lines if not x.startswith(b"index ") or b"GIT binary patch" in lines]
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        rng.choice(_CHANGES)(rng, lines, samples)
    if rng.random() < 0.5:
        recount(lines)
    data = b"\n".join(lines)
    return rng.choice(_WHOLE)(rng, data) if rng.random() < 0.08 else data


def recount(lines: Lines) -> None:
    """Make the counts of every hunk's header true."""
    for at, line in enumerate(lines):
        match = re.match(rb"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)", line)
        if match is None:
            continue
        old = new = 0
        for body in lines[at + 1 :]:
            if body[:1] not in (b" ", b"-", b"+", b"\\") or body in (b"-- ", b"--"):
                break
            old += body[:1] in (b" ", b"-")
            new += body[:1] in (b" ", b"+")
        lines[at] = b"@@ -%s,%d +%s,%d @@%s" % (match[1], old, match[2], new, match[3])


def _at(rng: random.Random, lines: Lines, wanted: Callable[[bytes], object]) -> int:
    """The place of a line of a kind, or of any line."""
    found = [i for i, line in enumerate(lines) if wanted(line)]
    return rng.choice(found) if found else rng.randrange(len(lines))


def _structure_line(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    at = _at(rng, lines, _STRUCTURE.match)
    kind = rng.randrange(5)
    if kind == 0:
        del lines[at]
        lines += [b""] * (not lines)
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2 and at + 1 < len(lines):
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    elif kind == 3:
        lines.insert(rng.randrange(len(lines)), lines.pop(at))
    else:
        lines.insert(at, rng.choice(TEXTS))


def _any_line(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    at = rng.randrange(len(lines))
    lines[at : at + rng.choice((0, 1))] = [rng.choice(TEXTS)]


def _numbers(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    at = _at(rng, lines, lambda x: x.startswith(b"@@ "))
    found = list(re.finditer(rb"\d+", lines[at]))
    if found:
        one = rng.choice(found)
        value = int(one[0][:15])
        new = rng.choice((value + 1, max(value - 1, 0), 0, 1, 2**31, 2**63, value + 10))
        lines[at] = lines[at][: one.start()] + b"%d" % new + lines[at][one.end() :]


def _shift(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    """A hunk elsewhere, on both sides, with its counts."""
    at = _at(rng, lines, lambda x: x.startswith(b"@@ "))
    by = rng.choice((-3, -1, 1, 2, 3, 5, 20))
    lines[at] = re.sub(rb"(?<=[-+])\d+", lambda m: b"%d" % max(0, int(m[0][:9]) + by), lines[at])


def _hunk_line(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    at = _at(rng, lines, lambda x: x[:1] in (b" ", b"-", b"+") and not x.startswith((b"---", b"+++")))
    kind = rng.randrange(9)
    if kind == 0:
        lines[at] = rng.choice((b" ", b"-", b"+", b"\\", b"")) + lines[at][1:]
    elif kind == 1:
        lines.insert(
            at,
            rng.choice((b"+added", b"+", b"+\r", b"+\xff", b"+a\x00b", b" ", b"+-- ", b"+From x", b"+" + b"w" * 500)),
        )
    elif kind == 2:
        lines.insert(at + 1, b"\\ No newline at end of file")
    elif kind == 3:
        lines[at] += rng.choice((b"\r", b" ", b"\t", b"\x0c"))
    elif kind == 4:
        lines[at] = lines[at].rstrip() if rng.randrange(2) else lines[at][:1] + lines[at][1:].lstrip()
    elif kind == 5 and lines[at].startswith(b"+"):
        lines[at] += b" changed"
    elif kind == 6:
        lines[at] = b"\\ " + rng.choice((b"No newline at end of file", b"Kein Zeilenumbruch am Dateiende.", b"", b"x"))
    else:
        del lines[at]
        lines += [b""] * (not lines)


def _context_off(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    """A hunk with less context before or behind its changes, its numbers right."""
    at = _at(rng, lines, lambda x: x.startswith(b"@@ "))
    match = re.match(rb"@@ -(\d{1,9})(?:,\d+)? \+(\d{1,9})(?:,\d+)? @@(.*)", lines[at])
    if match is None:
        return
    old, new = int(match[1]), int(match[2])
    for _ in range(rng.randint(1, 3)):
        if rng.randrange(2) and at + 1 < len(lines) and lines[at + 1].startswith(b" "):
            del lines[at + 1]
            old, new = old + 1, new + 1
        else:
            end = at + 1
            while end < len(lines) and lines[end][:1] in (b" ", b"-", b"+") and lines[end] != b"-- ":
                end += 1
            if lines[end - 1].startswith(b" "):
                del lines[end - 1]
    lines[at] = b"@@ -%d +%d @@%s" % (old, new, match[3])
    recount(lines)


def _name(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    """Another name for a file, in one line or wherever it stands."""
    at = _at(rng, lines, lambda x: x.startswith((b"diff --git ", b"--- a/", b"+++ b/", b"rename ", b"copy ")))
    match = re.match(rb"(?:diff --git a/|--- a/|\+\+\+ b/|(?:rename|copy) (?:from|to) )(\S+)", lines[at])
    if match is None:
        return
    old, new = match[1], rng.choice(NAMES)
    for i in [at] if rng.random() < 0.3 else range(len(lines)):
        if lines[i].startswith((b"diff --git ", b"--- ", b"+++ ", b"rename ", b"copy ")):
            lines[i] = lines[i].replace(old, new)


def _prefix(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    old, new = rng.choice(
        (
            (b"a/", b"i/"),
            (b"b/", b"w/"),
            (b"a/", b""),
            (b"b/", b""),
            (b"a/", b"x/a/"),
            (b"a/", b"b/"),
            (b" a/", b'"a/'),
            (b"b/", b"a/"),
        )
    )
    once = _at(rng, lines, lambda x: x.startswith((b"diff --git ", b"--- ", b"+++ ")))
    for i in [once] if rng.random() < 0.4 else range(len(lines)):
        if lines[i].startswith((b"diff --git ", b"--- ", b"+++ ")):
            lines[i] = lines[i].replace(old, new, 1)


def _name_tail(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    at = _at(rng, lines, lambda x: x.startswith((b"diff --git ", b"--- ", b"+++ ", b"rename ", b"copy ")))
    lines[at] += rng.choice((b"\t", b"\t2026-01-01", b" ", b"\r", b'"', b"\\", b"\t\t", b" b/x", b" (new)"))


def _mode(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    at = _at(rng, lines, lambda x: re.search(rb"mode \d|^index .* \d{6}$", x) or x.startswith(b"diff --git "))
    if lines[at].startswith(b"diff --git "):
        word = rng.choice((b"old mode ", b"new mode ", b"new file mode ", b"deleted file mode "))
        lines.insert(at + 1, word + rng.choice(MODES))
        if word == b"old mode ":
            lines.insert(at + 2, b"new mode " + rng.choice(MODES))
    else:
        lines[at] = re.sub(rb"\d+$", rng.choice(MODES), lines[at])


def _id(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    at = _at(rng, lines, lambda x: x.startswith(b"index "))
    match = re.match(rb"index ([0-9a-f]+)\.\.([0-9a-f]+)(.*)", lines[at])
    if match is None:
        return
    sides = [match[1], match[2]]
    side = rng.randrange(2)
    sides[side] = rng.choice(
        (
            sides[side][:7],
            sides[side][:4],
            sides[side][:3],
            b"0" * 40,
            b"0" * 7,
            sides[side].upper(),
            sides[side] + b"0",
            sides[1 - side],
            b"f" * 40,
            b"a" * 64,
        )
    )
    lines[at] = b"index %s..%s%s" % (
        sides[0],
        sides[1],
        rng.choice((match[3], b"", b" 100644", b" 100755", b" 120000")),
    )


def _section(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    """A whole section: twice, away, elsewhere, or one of another sample."""
    starts = [i for i, line in enumerate(lines) if line.startswith(b"diff --git ")]
    if not starts:
        return
    first = rng.choice(starts)
    end = next((s for s in starts if s > first), len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        lines[end:end] = lines[first:end]
    elif kind == 1:
        del lines[first:end]
        lines += [b""] * (not lines)
    elif kind == 2:
        part = lines[first:end]
        del lines[first:end]
        lines[starts[0] : starts[0]] = part
    else:
        other = rng.choice(samples).split(b"\n")
        begin = next((i for i, line in enumerate(other) if line.startswith(b"diff --git ")), 0)
        lines[first:first] = [x for x in other[begin:] if x]


def _mail_header(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    """A line of the mail's header: another, twice, away, elsewhere, or one put in."""
    end = next((i for i, line in enumerate(lines) if line == b""), len(lines))
    at = rng.randrange(max(end, 1))
    kind = rng.randrange(5)
    header = rng.choice(HEADERS)
    if kind == 0 and len(lines) > 1:
        del lines[at]
    elif kind == 1:
        lines.insert(rng.randrange(end + 1), lines[min(at, len(lines) - 1)])
    elif kind == 2:
        lines.insert(rng.randrange(end + 1), header)
    else:
        key = header.partition(b":")[0] + b":"
        same = [i for i in range(min(end, len(lines))) if lines[i].startswith(key)]
        lines[same[0] if same else 0] = header


def _said(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    """Another author, subject or body, of those that gave trouble before."""
    kind = rng.randrange(3)
    if kind == 0:
        at = _at(rng, lines, lambda x: x.startswith(b"From: "))
        lines[at] = b"From: " + rng.choice(AUTHORS).encode()
    elif kind == 1:
        at = _at(rng, lines, lambda x: x.startswith(b"Subject: "))
        lines[at] = b"Subject: [PATCH] " + rng.choice(SUBJECTS).replace("\n", " ").encode()
    else:
        at = next((i for i, line in enumerate(lines) if line == b""), 0)
        lines[at + 1 : at + 1] = rng.choice(BODIES).encode().split(b"\n")


def _letters(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    at = rng.randrange(len(lines))
    line = bytearray(lines[at])
    where = rng.randrange(len(line) + 1)
    line[where : where + rng.choice((0, 1, 1, 3))] = rng.choice(
        (b"", b" ", b"\t", b"x", b"\xff", b"\0", b"\r", b"=", b"?", b":", b"0", b"-", b'"', b"\\", rng.randbytes(1))
    )
    lines[at] = bytes(line)


def _binary(rng: random.Random, lines: Lines, samples: list[bytes]) -> None:
    """A line of a binary block: its size, its length letter, a digit, a line less."""
    starts = [i for i, line in enumerate(lines) if re.match(rb"literal \d|delta \d", line)]
    if not starts:
        _letters(rng, lines, samples)
        return
    at = rng.choice(starts) + rng.choice((0, 1, 1, 2))
    if at < len(lines) and lines[at]:
        kind = rng.randrange(3)
        where = rng.randrange(len(lines[at]))
        if kind == 0:
            lines[at] = lines[at][:where] + bytes([rng.randrange(33, 127)]) + lines[at][where + 1 :]
        elif kind == 1:
            lines[at] = re.sub(
                rb"\d+", lambda m: b"%d" % rng.choice((0, 1, int(m[0][:9]) + 1, 10**12, 2**40)), lines[at], count=1
            )
        else:
            del lines[at]


_CHANGES: tuple[Callable[[random.Random, Lines, list[bytes]], None], ...] = (
    _structure_line,
    _any_line,
    _numbers,
    _shift,
    _hunk_line,
    _hunk_line,
    _hunk_line,
    _context_off,
    _name,
    _prefix,
    _name_tail,
    _mode,
    _id,
    _section,
    _mail_header,
    _mail_header,
    _said,
    _letters,
    _binary,
)
_WHOLE: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    lambda _, data: data.replace(b"\n", b"\r\n"),
    lambda _, data: b"\xef\xbb\xbf" + data,
    lambda _, data: data.decode("latin-1").encode("utf-16"),
    lambda rng, data: data[: rng.randrange(len(data) + 1)],
    lambda _, data: data + b"\n-- \nsomething\nmore\n",
    lambda _, data: data + b"\n" * 5,
    lambda _, data: data.rstrip(b"\n"),
    lambda _, data: data + data,
    lambda rng, data: data + rng.randbytes(20),
    lambda _, data: (
        data.partition(b"\ndiff --git ")[0].replace(b"\n", b"\r\n")
        + b"\ndiff --git "
        + data.partition(b"\ndiff --git ")[2]
    ),
)
