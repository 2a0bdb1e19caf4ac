"""Turns a foreign commit's message into a patch header with a marked line for everything that our lint wants and the mail lacks.

The lint rule `filled-in` looks for `MARKER`, so that `verify` names every such line until somebody has filled it in.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container
from dataclasses import replace

from patchctl.importing.types import Message
from patchctl.patch.header import Header, parse_header
from patchctl.patch.write import render_patch

MARKER = "TODO(import)"
_LONGEST_FEATURE = 40
_NEED = f"Need: {MARKER}: what goes wrong or is missing upstream, and how one meets it."
_CHANGE = f"{MARKER}: what the patch changes, and why there."
_RISK = f"Risk: {MARKER}: what could depend on the old behaviour."
_TRAILERS = {
    "Switch": f"{MARKER}: none, env NAME=VALUE, config key=VALUE or option --NAME",
    "Upstream-Status": f"{MARKER}: Pending, Submitted URL, Backport URL or Inappropriate REASON",
    "Drop-When": f"{MARKER}: the upstream release or change that makes it needless",
}
_FIRST = ("Feature", "Switch", "Requires")


def own_header(message: Message, taken: Container[str]) -> Header:
    """The header with every paragraph and trailer that a patch of a stack has; `taken` are the features that are there."""
    header = _parsed(Header(message.name, message.email, message.date, message.subject, message.body))
    paragraphs = [p.strip("\n") for p in re.split(r"\n[ \t]*\n", header.body) if p.strip("\n")]
    if header.trailers:
        paragraphs.pop()
    trailers = {key: [t.value for t in values] for key, values in header.trailers.items()}
    wanted = {"Feature": feature_name(message.subject, taken), **_TRAILERS}
    for key, value in wanted.items():
        trailers.setdefault(key, [value])
    trailers.setdefault("Imported", [_origin(message)])
    ordered = [k for k in _FIRST if k in trailers]
    ordered += [k for k in trailers if k not in (*_FIRST, "Upstream-Status", "Drop-When", "Imported")]
    ordered += ["Upstream-Status", "Drop-When", "Imported"]
    lines = "\n".join(f"{key}: {value}" for key in ordered for value in trailers[key])
    return _parsed(replace(header, body="\n\n".join([*_told(paragraphs), lines]), trailers={}))


def _told(paragraphs: list[str]) -> list[str]:
    """Need, change, risk, in the order that the lint wants; what the author wrote stays as it is."""
    risks = [p for p in paragraphs if p.startswith("Risk:")]
    others = [p for p in paragraphs if not p.startswith("Risk:")]
    missing = [[_NEED, _CHANGE], [_NEED], []][min(len(others), 2)]
    return [*missing, *others, *(risks or [_RISK])]


def _parsed(header: Header) -> Header:
    """The header as our reader finds it in a file, with its trailers."""
    found, _ = parse_header(render_patch(header, []).split(b"\n"), "message")
    return replace(found, body=found.body.strip("\n"))


def _origin(message: Message) -> str:
    """The mail by its file's name and digest: where the patch came from, and that its author is deliberately foreign."""
    name = re.sub(r"[^A-Za-z0-9._#+-]", "_", message.mail.shown.rpartition("/")[2])[-60:]
    return f"{name}, sha256 {hashlib.sha256(message.mail.data).hexdigest()[:12]}"


def feature_name(subject: str, taken: Container[str]) -> str:
    """A feature's name from a subject: its words in small letters, as many as are short, and not one that is taken."""
    words = re.findall(r"[a-z0-9]+", subject.lower())
    name = ""
    for word in words:
        if len(name) + 1 + len(word) > _LONGEST_FEATURE:
            break
        name = f"{name}_{word}" if name else word
    name = name or (words[0][:_LONGEST_FEATURE] if words else "imported")
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found
