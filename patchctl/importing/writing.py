"""Puts imported patches into a distribution: all of them are on the disk before the stack's manifest names the first.

They are written and synchronised in a hidden folder beside the stack's, moved from there by rename, and the manifest is
replaced last. A run that is killed before that leaves a stack without any of them; the same import, run again, goes on.

Turns a foreign commit's message into a patch header with a marked line for everything that our lint wants and the mail lacks.

The lint rule `filled-in` looks for `MARKER`, so that `verify` names every such line until someone has filled it in.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import socket
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from patchctl.atomic import new_folder, replace_file, sweep, sync_folder
from patchctl.errors import LocalEdits, PatchctlError
from patchctl.importing.match_base import Target
from patchctl.importing.types import Message
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.files import rewrite_list
from patchctl.manifest.load import loads
from patchctl.manifest.types import Stack
from patchctl.os_errors import error_type
from patchctl.patch.header import Header, parse_header
from patchctl.patch.write import render_patch
from patchctl.stack.export import Exported, write_stack

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


_PREFIX = ".patchctl-import-"
_ABANDONED_SECONDS = 3600.0  # of a run on another machine; one that died on this one is known by its process id
_TOP_LEVEL = re.compile(r"(?m)^(?=[A-Za-z_]+:)")


@contextmanager
def staged(dist: Distribution, stack: Stack, exported: Sequence[Exported]) -> Iterator[Path]:
    """The patches and carried files in a hidden folder beside the stack's; gone when the block ends. Raises WrongUse."""
    parent = dist.root / "patches" / stack.upstream
    made = [p for p in (parent, parent.parent) if not p.exists()]
    try:
        folder = new_folder(parent, f"{_PREFIX}{socket.gethostname()}-{os.getpid()}-")
        sweep(parent, _PREFIX, _ABANDONED_SECONDS)
    except OSError as error:
        raise _unwritable(parent, error) from error
    try:
        write_stack(folder, exported)
        yield folder
    except OSError as error:
        raise _unwritable(parent, error) from error
    finally:
        for _ in range(2):  # a disk that fails once fails at one of its files
            shutil.rmtree(folder, ignore_errors=True)
        for empty in made:
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()


def sweep_dead(dist: Distribution) -> None:
    """Drop what runs of this machine left in a distribution that were killed."""
    for left in (dist.root / "patches").glob(f"*/{_PREFIX}{glob.escape(socket.gethostname())}-*"):
        process = left.name.rsplit("-", 2)[-2]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            shutil.rmtree(left, ignore_errors=True)
        except (OSError, ValueError):
            continue  # it lives, of another user


def _unwritable(place: Path, error: OSError) -> PatchctlError:
    return error_type(error)(
        f"{place} cannot be written: {error.strerror}", hint="nothing was imported; mend it and run it again"
    )


def write(dist: Distribution, target: Target, folder: Path, exported: Sequence[Exported], manifest: str) -> None:
    """Move what is staged in `folder` to its place, then write the manifest, whose text was read before the run began.

    Raises LocalEdits when a file of another content is in the way, or the manifest was changed meanwhile.
    """
    place = dist.root / "patches" / target.stack.upstream / target.stack.name
    file = dist.stack_file(target.stack)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if text != ("" if target.is_new else manifest):
        raise LocalEdits(f"{file} was changed while this ran", [str(file)], hint="run it again")
    pairs = [(f, place / f.relative_to(folder)) for f in sorted(folder.rglob("*")) if f.is_file()]
    there = [(f, t) for f, t in pairs if t.exists() or t.is_symlink()]
    other = [str(t) for f, t in there if t.is_symlink() or not t.is_file() or t.read_bytes() != f.read_bytes()]
    if other:
        raise LocalEdits(
            "files that no manifest lists are in the way", other, hint="move them elsewhere, or remove them"
        )
    names = [e.name for e in exported]
    own = names if target.is_new else [*target.stack.patches, *names]
    wanted = rewrite_list(_base_text(target, manifest), "patches", own)
    loads(wanted.encode(), Stack, str(file))  # what could not be read again is not written
    with ExitStack() as undo:
        for source, to in pairs:
            undo.callback(_drop_empty, to.parent, dist.root / "patches")
            to.parent.mkdir(parents=True, exist_ok=True)
            if (source, to) not in there:
                undo.callback(to.unlink, missing_ok=True)
            source.replace(to)
        for parent in sorted({place, *(to.parent for _, to in pairs)}):
            sync_folder(parent)  # on the disk before the manifest names what was moved
        try:
            replace_file(file, wanted.encode())
        finally:
            # In its place, which it is also where the disk failed just after the rename.
            if file.is_file() and file.read_bytes() == wanted.encode():
                undo.pop_all()


def _drop_empty(folder: Path, top: Path) -> None:
    """Take away folders that hold nothing any more, up to `top`."""
    while folder != top and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _base_text(target: Target, manifest: str) -> str:
    """The manifest to write the list into: the stack's own, or for a new one that of the stack which lends its pin."""
    if not target.is_new:
        return manifest
    blocks = _TOP_LEVEL.split(manifest)
    kept = [b for b in blocks if not b.startswith(("name:", "patches:", "extends:", "replace:", "note:"))]
    kept[-1] = kept[-1].rstrip("\n") + "\n"
    at = next(i for i, b in enumerate(kept) if b.startswith("upstream:")) + 1
    kept.insert(at, f"name: {target.stack.name}\n")
    extends = f"extends: {target.stack.extends}\n" if target.stack.extends else ""
    return "".join(kept) + extends + "patches: []\n"
