"""Signatures of bundles and statements, by ssh-keygen over the whole file, as git signs commits with it.

The signature covers the file's bytes and is stored in FILE.sig: `ssh-keygen -Y sign -n patchctl-bundle -f KEY
FILE` gives what `bundle create --sign KEY` gives, and a bundle has the same bytes for every signer. Signatures of
another namespace (a commit, a mail, a statement) do not count.

ssh-keygen only reads copies in a folder of ours, and the file through a pipe while its sha256 is computed, which
the bundle's reader compares: what was verified is what is used.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import NotTrusted, WrongUse
from patchctl.language import joined, message
from patchctl.os_errors import os_reason
from patchctl.process_group import find_program
from patchctl.terminal.text import one_line, visible_line

OLDEST = "8.2"
_SUFFIX = ".sig"
_SIGNATURE_LIMIT = 64 << 10  # a 16,384 bit RSA signature has 6 kB
_COUNT_LIMIT = 8
_LIST_LIMIT = 1 << 20
_CHUNK = 1 << 20
_BLOCK = re.compile(rb"-----BEGIN SSH SIGNATURE-----\r?\n[A-Za-z0-9+/=\r\n]+-----END SSH SIGNATURE-----\r?\n?")
_KEY = re.compile(r"with (\S+) key (SHA256:\S+)")
# OpenSSH 8.0 has no -Y, 8.1 no find-principals; the messages are OpenSSH's and the C library's getopt's.
_TOO_OLD = ("unsupported operation", "unknown option", "illegal option", "invalid option", "unrecognized option")


@dataclass(frozen=True)
class Signable:
    """A kind of file that is signed: its name in messages, and the command that signs one."""

    name: str
    command: str

    @property
    def namespace(self) -> str:
        return f"patchctl-{self.name}"


BUNDLE = Signable(message("bundle"), "patchctl bundle create --sign KEY")
EVIDENCE = Signable(message("record"), "patchctl prove --sign KEY")
STATEMENT = Signable(message("statement"), "patchctl sbom --format in-toto --sign KEY")


@dataclass(frozen=True)
class Trust:
    """Whose signatures the user trusts.

    `allowed` is a file in the format of ssh-keygen(1), ALLOWED SIGNERS; `revoked` a list of keys or a KRL. If
    `required`, a file without a good signature is refused, else there is a warning.
    """

    allowed: Path
    revoked: Path | None
    required: bool


@dataclass(frozen=True)
class Signer:
    """The signer of a bundle."""

    principal: Annotated[str | None, Doc("identity in the allowed-signers list; null when creating a signature")]
    key: Annotated[str, Doc("type and fingerprint of the key")]


@dataclass(frozen=True)
class Signature:
    """The good signatures in `file`. `sha256` is the digest of the signed bytes."""

    file: Annotated[Path, Doc("path of the signature file")]
    signers: Annotated[tuple[Signer, ...], Doc("signers; when verifying, only those in the allowed-signers list")]
    sha256: str


def signature_file(signed: Path) -> Path:
    """Return the path of a file's signature."""
    return signed.with_name(signed.name + _SUFFIX)


def check_signature(signed: Path, file: IO[bytes], trust: Trust, kind: Signable = BUNDLE) -> Signature:
    """Return which allowed signers signed the bytes of `file`, which is `signed`, opened.

    One good signature of several is enough. Raises NotTrusted if there is none, WrongUse if the lists cannot be read
    or ssh-keygen is missing.
    """
    held = signature_file(signed)
    blocks = _blocks(held, signed, kind)
    try:
        with _bench(trust) as bench:
            found = [_asked(bench, block, file, trust, kind) for block in blocks]
    except OSError as error:
        raise WrongUse(f"cannot check the signature: {error.strerror or error}", where=str(signed)) from error
    good = [one for one in found if isinstance(one, _Good)]
    if not good:
        reasons = joined((one for one in found if isinstance(one, str)), "; ")
        hint = message(
            "get {what} and signature again from their creator, or ask for the signing key and add it to the allowed signers",
            what=kind.name,
        )
        raise NotTrusted(message("no trusted signature: {reasons}", reasons=reasons), where=str(held), hint=hint)
    if len({one.sha256 for one in good}) > 1:
        raise NotTrusted(
            message("the {what} was modified while its signatures were being checked", what=kind.name),
            where=str(signed),
        )
    return Signature(held, tuple(one.signer for one in good), good[0].sha256)


@dataclass(frozen=True)
class SigningKey:
    """A key that ssh-keygen can use: a private key, or a public one whose private half is in an agent or token."""

    path: Path
    signer: Signer

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Load a key. Raises WrongUse for an unusable one, before doing work that signing would then waste."""
        said = _run([ssh_keygen(), "-l", "-f", str(path.absolute())])
        found = re.match(r"\d+ (SHA256:\S+) .*\(([\w-]+)\)$", said.out.strip())
        if said.status != 0 or not found:
            hint = "name a private key, or a public one whose private half is in an agent (`ssh-add -L`)"
            raise WrongUse(f"not a signing key: {one_line(said.err or said.out)}", where=str(path), hint=hint)
        return cls(path, Signer(None, f"{found[2]} {found[1]}"))

    def sign(self, handle: int, sha256: str, kind: Signable = BUNDLE) -> bytes:
        """Sign an open file from its first byte. Raises WrongUse, also if its digest is no longer `sha256`."""
        with open(handle, "rb", closefd=False) as file:
            # Uses the user's full environment: agent, askpass, PKCS#11 library.
            said = _run(
                [ssh_keygen(), "-Y", "sign", "-n", kind.namespace, "-f", str(self.path.absolute())], file, os.environ
            )
        if said.status != 0 or not _BLOCK.fullmatch(said.out.encode()):
            raise WrongUse(
                f"the {kind.name} was not written: signing failed: {one_line(said.err)}", where=str(self.path)
            )
        if said.sha256 != sha256:
            raise WrongUse(f"the {kind.name} was not written: it was modified while being signed", where=str(self.path))
        return said.out.encode()

    def sign_beside(self, path: Path, file: IO[bytes], sha256: str, kind: Signable = BUNDLE) -> Signature:
        """Sign the open file that is to be `path`, and write its signature. Raises what `sign` raises.

        Before it is renamed: the file of that name could be another by then.
        """
        file.flush()
        held = signature_file(path)
        replace_file(held, self.sign(file.fileno(), sha256, kind))
        return Signature(held, (self.signer,), sha256)


@functools.cache
def ssh_keygen() -> str:
    """Return the absolute path of a recent ssh-keygen, never one in the current directory. Raises WrongUse."""
    path = find_program("ssh-keygen")
    hint = message("install OpenSSH {version} or newer (openssh-client, openssh-clients)", version=OLDEST)
    if path is None:
        raise WrongUse(message("ssh-keygen, which checks signatures, was not found on PATH"), hint=hint)
    said = _run([path, "-Y", "find-principals"])
    if any(words in said.err.lower() for words in _TOO_OLD):
        what = message("{path} is older than OpenSSH {version} and cannot check signatures", path=path, version=OLDEST)
        raise WrongUse(what, hint=hint)
    if "find-principals" not in said.err:
        reason = one_line(said.err) or message("status {status}", status=said.status)
        if "no user exists" in said.err.lower():  # as of `docker run --user N`
            hint = message("run it as a user whom /etc/passwd has, or add a line for it there")
        raise WrongUse(message("{path} does not work here: {reason}", path=path, reason=reason), hint=hint)
    return path


@dataclass(frozen=True)
class _Good:
    signer: Signer
    sha256: str


@dataclass(frozen=True)
class _Said:
    status: int
    out: str
    err: str
    sha256: str


def _asked(bench: Path, block: bytes, file: IO[bytes], trust: Trust, kind: Signable) -> _Good | str:
    """Return the signature's signer, or why it does not count."""
    (bench / "signature").write_bytes(block)
    found = _run([ssh_keygen(), "-Y", "find-principals", "-s", "signature", "-f", "allowed"], cwd=bench)
    names = found.out.splitlines() if found.status == 0 else []
    last = found
    for name in dict.fromkeys(names[:_COUNT_LIMIT]):
        revoked = ["-r", "revoked"] if trust.revoked else []
        command = ["verify", "-n", kind.namespace, "-s", "signature", "-f", "allowed", "-I", name, *revoked]
        last = _run([ssh_keygen(), "-Y", *command], file, cwd=bench)
        if last.status == 0:
            return _Good(Signer(name, _key(last)), last.sha256)
    return _why(bench, file, trust, kind, last, known=bool(names))


def _why(bench: Path, file: IO[bytes], trust: Trust, kind: Signable, said: _Said, *, known: bool) -> str:
    """Return why a signature was rejected; `known`: its key is in the list."""
    alone = _run([ssh_keygen(), "-Y", "check-novalidate", "-n", kind.namespace, "-s", "signature"], file, cwd=bench)
    if alone.status != 0 and "namespace" in alone.err:
        return message(
            "it was not made for a {what} (its namespace is not {namespace})", what=kind.name, namespace=kind.namespace
        )
    if alone.status != 0 and "incorrect signature" in alone.err:
        return message("the {what} was modified after signing, or this is another {what}'s signature", what=kind.name)
    if alone.status != 0:
        return message("it cannot be read: {error}", error=one_line(alone.err))
    key = _key(alone)
    of_list = next((line for line in said.err.splitlines() if line.startswith("allowed:")), None)
    if of_list:
        return f"{key}: {one_line(str(trust.allowed) + of_list.removeprefix('allowed'))}"
    if known and trust.revoked:
        return message("{key} is revoked by {file}", key=key, file=visible_line(str(trust.revoked)))
    return message("{key} is not in {file}", key=key, file=visible_line(str(trust.allowed)))


def _key(said: _Said) -> str:
    found = _KEY.search(said.out)
    return visible_line(f"{found[1]} {found[2]}") if found else "its key"


def _blocks(held: Path, signed: Path, kind: Signable) -> list[bytes]:
    """Return the distinct signatures next to a file. Raises NotTrusted."""
    if not os.path.lexists(held):
        sign = f"ssh-keygen -Y sign -n {kind.namespace} -f KEY {visible_line(shlex.quote(str(signed.absolute())))}"
        hint = message(
            "copy it next to the {what}; `{command}` or `{sign}` creates one",
            what=kind.name,
            command=kind.command,
            sign=sign,
        )
        missing = message(
            "the {what} has no signature: {file} does not exist", what=kind.name, file=visible_line(held.name)
        )
        raise NotTrusted(missing, where=str(signed), hint=hint)
    try:
        data, _ = _bytes_of(held, _SIGNATURE_LIMIT, os.O_NOFOLLOW)
    except _Unreadable as fault:
        raise NotTrusted(
            message("cannot use the {what}'s signature: {fault}", what=kind.name, fault=fault.args[0]), where=str(held)
        ) from fault
    blocks = _BLOCK.findall(data)
    if not blocks or b"".join(blocks) != data:
        raise NotTrusted(message("not a complete signature of ssh-keygen"), where=str(held))
    if len(blocks) > _COUNT_LIMIT:
        raise NotTrusted(message("more than {count_limit} signatures", count_limit=_COUNT_LIMIT), where=str(held))
    return list(dict.fromkeys(blocks))


@contextmanager
def _bench(trust: Trust) -> Iterator[Path]:
    """Yield a private folder with copies of the user's lists. Raises WrongUse."""
    with tempfile.TemporaryDirectory(prefix="patchctl-signature-") as folder:
        (Path(folder) / "allowed").write_bytes(_list(trust.allowed, message("the list of allowed signers")))
        if trust.revoked is not None:
            (Path(folder) / "revoked").write_bytes(_list(trust.revoked, message("the list of revoked keys")))
        yield Path(folder)


def _list(path: Path, called: str) -> bytes:
    """Read one of the user's lists. Raises WrongUse, also if the file is world-writable."""
    try:
        data, mode = _bytes_of(path, _LIST_LIMIT)
        if mode & stat.S_IWOTH:
            raise _Unreadable(message("it is world-writable"))
    except _Unreadable as fault:
        raise WrongUse(
            message("cannot use {called}: {fault}", called=called, fault=fault.args[0]),
            where=str(path),
            hint=message("docs/bundles.md describes it"),
        ) from fault
    return data


class NoRegularFile(Exception):
    """A folder, a device, a FIFO."""


@contextmanager
def regular_file(path: Path, flags: int = 0) -> Iterator[tuple[IO[bytes], os.stat_result]]:
    """Yield an open regular file and its status, without blocking on a FIFO. Raises NoRegularFile, OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        held = os.fstat(handle)
        if not stat.S_ISREG(held.st_mode):
            raise NoRegularFile
        with open(handle, "rb", closefd=False) as file:
            yield file, held
    finally:
        os.close(handle)


class _Unreadable(Exception):
    """Why a file is not used."""


def _bytes_of(path: Path, limit: int, flags: int = 0) -> tuple[bytes, int]:
    """Return the bytes and mode of a small regular file. Raises _Unreadable."""
    try:
        with regular_file(path, flags) as (file, held):
            data = file.read(limit + 1)
    except NoRegularFile as fault:
        raise _Unreadable(message("it is not a regular file")) from fault
    except OSError as error:
        raise _Unreadable(message("it is a link") if path.is_symlink() and flags else os_reason(error)) from error
    if len(data) > limit:
        raise _Unreadable(message("it is larger than {limit} bytes", limit=limit))
    return data, held.st_mode


def _run(
    command: Sequence[str], file: IO[bytes] | None = None, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> _Said:
    """Run ssh-keygen with the bytes of `file`, from its start, on standard input.

    Without `env`, the environment has only TZ and PATH: no OPENSSL_CONF, no LD_PRELOAD.
    """
    plain = {"PATH": os.defpath} | {name: os.environ[name] for name in ("TZ",) if name in os.environ}
    digest = hashlib.sha256()
    pipe = subprocess.PIPE
    own = {**(plain if env is None else env), "LC_ALL": "C"}
    with subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env=own, cwd=cwd) as process:
        assert process.stdin is not None
        if file is not None:
            file.seek(0)
            wanted = True
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                wanted = wanted and _given(process.stdin.fileno(), chunk)
        out, err = process.communicate()
    return _Said(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), digest.hexdigest())


def _given(pipe: int, chunk: bytes) -> bool:
    """Write a chunk; False if the reader has closed the pipe."""
    left = memoryview(chunk)
    try:
        while left:
            left = left[os.write(pipe, left) :]
    except BrokenPipeError:
        return False
    return True
