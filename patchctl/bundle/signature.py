"""Whose a bundle is: signatures of ssh-keygen over the whole file, as git signs commits with it.

Signed are the bytes of the archive, and the signature lies beside it, in FILE.sig: `ssh-keygen -Y sign -n patchctl-bundle -f KEY
FILE` makes what `bundle create --sign KEY` makes, and the same bundle has the same bytes whoever signs it. A signature of another
namespace, of a commit or a mail, is none of a bundle.

Everything that ssh-keygen reads is a copy in a folder of ours, read once, and the bundle goes through a pipe of ours while its sha256
is taken, which the reader of the bundle compares: what was proven is what is used.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

from patchctl.doc import Doc
from patchctl.errors import NotTrusted, WrongUse
from patchctl.terminal.text import one_line, visible_line

NAMESPACE = "patchctl-bundle"
OLDEST = "8.2"
_SUFFIX = ".sig"
_SIGNATURE_LIMIT = 64 << 10  # one of RSA with 16,384 bits has 6 kB
_COUNT_LIMIT = 8
_LIST_LIMIT = 1 << 20
_CHUNK = 1 << 20
_BLOCK = re.compile(rb"-----BEGIN SSH SIGNATURE-----\r?\n[A-Za-z0-9+/=\r\n]+-----END SSH SIGNATURE-----\r?\n?")
_KEY = re.compile(r"with (\S+) key (SHA256:\S+)")
# 8.0 knows no -Y, 8.1 no find-principals; the words are of OpenSSH's and of the C library's getopt.
_TOO_OLD = ("unsupported operation", "unknown option", "illegal option", "invalid option", "unrecognized option")


@dataclass(frozen=True)
class Trust:
    """Whom the user believes. `allowed` is a file as ssh-keygen(1) describes under ALLOWED SIGNERS, `revoked` a list of keys or a
    KRL. `required`: without a good signature the bundle is refused; else there is a warning."""

    allowed: Path
    revoked: Path | None
    required: bool


@dataclass(frozen=True)
class Signer:
    """Who signed."""

    principal: Annotated[str | None, Doc("the identity in the list of allowed signers; null when it is created")]
    key: Annotated[str, Doc("kind and fingerprint of the key")]


@dataclass(frozen=True)
class Signature:
    """The good signatures in `file`. `sha256` is that of the bytes that they are of."""

    file: Annotated[Path, Doc("where it is")]
    signers: Annotated[
        tuple[Signer, ...], Doc("who signed; of a bundle that is checked, those whom the list of allowed signers has")
    ]
    sha256: str


def signature_file(bundle: Path) -> Path:
    """Where the signature of a bundle lies."""
    return bundle.with_name(bundle.name + _SUFFIX)


def check_signature(bundle: Path, file: IO[bytes], trust: Trust) -> Signature:
    """Who of the allowed signers signed the bytes of `file`, the open bundle.

    Of several signatures each counts for itself, and one that is good is enough. Raises NotTrusted when none is, WrongUse where the
    lists cannot be read or ssh-keygen cannot be had.
    """
    held = signature_file(bundle)
    blocks = _blocks(held, bundle)
    try:
        with _bench(trust) as bench:
            found = [_asked(bench, block, file, trust) for block in blocks]
    except OSError as error:
        raise WrongUse(f"the signature cannot be checked: {error.strerror or error}", where=str(bundle)) from error
    good = [one for one in found if isinstance(one, _Good)]
    if not good:
        reasons = "; ".join(str(one) for one in found)
        hint = "get the bundle and its signature again from who made them, or ask them for the key that they sign with"
        raise NotTrusted(f"no signature of the bundle counts: {reasons}", where=str(held), hint=hint)
    if len({one.sha256 for one in good}) > 1:
        raise NotTrusted("the bundle was changed while its signatures were checked", where=str(bundle))
    return Signature(held, tuple(one.signer for one in good), good[0].sha256)


@dataclass(frozen=True)
class SigningKey:
    """A key that ssh-keygen can read: a private one, or a public one whose private half an agent or a token has."""

    path: Path
    signer: Signer

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Raises WrongUse for what is no key, before work is done that only the signature would fail."""
        said = _run([ssh_keygen(), "-l", "-f", str(path.absolute())])
        found = re.match(r"\d+ (SHA256:\S+) .*\(([\w-]+)\)$", said.out.strip())
        if said.status != 0 or not found:
            hint = "name a private key, or a public one whose private half an agent has (`ssh-add -L`)"
            raise WrongUse(f"no key to sign with: {one_line(said.err or said.out)}", where=str(path), hint=hint)
        return cls(path, Signer(None, f"{found[2]} {found[1]}"))

    def sign(self, handle: int, sha256: str) -> bytes:
        """The signature of an open file, from its first byte; its digest must still be `sha256`. Raises WrongUse."""
        with open(handle, "rb", closefd=False) as file:
            # With the user's whole environment: agent, askpass, the library of a token.
            said = _run(
                [ssh_keygen(), "-Y", "sign", "-n", NAMESPACE, "-f", str(self.path.absolute())], file, os.environ
            )
        if said.status != 0 or not _BLOCK.fullmatch(said.out.encode()):
            raise WrongUse(
                f"the bundle was not written: it could not be signed: {one_line(said.err)}", where=str(self.path)
            )
        if said.sha256 != sha256:
            raise WrongUse("the bundle was not written: it was changed while it was signed", where=str(self.path))
        return said.out.encode()


@functools.cache
def ssh_keygen() -> str:
    """The absolute path of an ssh-keygen that can do what we ask, never one in the current folder. Raises WrongUse."""
    search = os.pathsep.join(p for p in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(p))
    path = shutil.which("ssh-keygen", path=search)
    hint = f"install OpenSSH {OLDEST} or newer (openssh-client, openssh-clients)"
    if path is None:
        raise WrongUse("ssh-keygen was not found on PATH, and signatures are its work", hint=hint)
    said = _run([path, "-Y", "find-principals"])
    if any(words in said.err.lower() for words in _TOO_OLD):
        raise WrongUse(f"{path} is older than OpenSSH {OLDEST}: it checks no signatures", hint=hint)
    if "find-principals" not in said.err:
        raise WrongUse(f"{path} does not work here: {one_line(said.err) or f'status {said.status}'}", hint=hint)
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


def _asked(bench: Path, block: bytes, file: IO[bytes], trust: Trust) -> _Good | str:
    """Whose this signature is, or why it does not count."""
    (bench / "signature").write_bytes(block)
    found = _run([ssh_keygen(), "-Y", "find-principals", "-s", "signature", "-f", "allowed"], cwd=bench)
    names = found.out.splitlines() if found.status == 0 else []
    last = found
    for name in dict.fromkeys(names[:_COUNT_LIMIT]):
        revoked = ["-r", "revoked"] if trust.revoked else []
        command = ["verify", "-n", NAMESPACE, "-s", "signature", "-f", "allowed", "-I", name, *revoked]
        last = _run([ssh_keygen(), "-Y", *command], file, cwd=bench)
        if last.status == 0:
            return _Good(Signer(name, _key(last)), last.sha256)
    return _why(bench, file, trust, last, known=bool(names))


def _why(bench: Path, file: IO[bytes], trust: Trust, said: _Said, *, known: bool) -> str:
    """What is wrong with a signature that was not taken; `known`: the list has its key."""
    alone = _run([ssh_keygen(), "-Y", "check-novalidate", "-n", NAMESPACE, "-s", "signature"], file, cwd=bench)
    if alone.status != 0 and "namespace" in alone.err:
        return f"it was made for something else than a bundle (its namespace is not {NAMESPACE})"
    if alone.status != 0 and "incorrect signature" in alone.err:
        return "it is of other bytes: the bundle was changed after it was signed, or this is another bundle's signature"
    if alone.status != 0:
        return f"it cannot be read: {one_line(alone.err)}"
    key = _key(alone)
    of_list = next((line for line in said.err.splitlines() if line.startswith("allowed:")), None)
    if of_list:
        return f"{key}: {one_line(str(trust.allowed) + of_list.removeprefix('allowed'))}"
    if known and trust.revoked:
        return f"{key} is revoked by {visible_line(str(trust.revoked))}"
    return f"{key} is no key of {visible_line(str(trust.allowed))}"


def _key(said: _Said) -> str:
    found = _KEY.search(said.out)
    return visible_line(f"{found[1]} {found[2]}") if found else "its key"


def _blocks(held: Path, bundle: Path) -> list[bytes]:
    """The signatures that lie beside a bundle, each once. Raises NotTrusted."""
    if not os.path.lexists(held):
        sign = f"ssh-keygen -Y sign -n {NAMESPACE} -f KEY {visible_line(bundle.name)}"
        hint = f"copy it beside the bundle; `bundle create --sign KEY` or `{sign}` makes it"
        raise NotTrusted(
            f"the bundle has no signature: there is no {visible_line(held.name)}", where=str(bundle), hint=hint
        )
    try:
        data, _ = _bytes_of(held, _SIGNATURE_LIMIT, os.O_NOFOLLOW)
    except _Unreadable as fault:
        raise NotTrusted(f"the bundle's signature cannot be taken: {fault}", where=str(held)) from fault
    blocks = _BLOCK.findall(data)
    if not blocks or b"".join(blocks) != data:
        raise NotTrusted("this is no signature of ssh-keygen, or not a whole one", where=str(held))
    if len(blocks) > _COUNT_LIMIT:
        raise NotTrusted(f"it holds more than {_COUNT_LIMIT} signatures", where=str(held))
    return list(dict.fromkeys(blocks))


@contextmanager
def _bench(trust: Trust) -> Iterator[Path]:
    """A folder that nobody else may enter, with the user's lists as they are now. Raises WrongUse."""
    with tempfile.TemporaryDirectory(prefix="patchctl-signature-") as folder:
        (Path(folder) / "allowed").write_bytes(_list(trust.allowed, "the list of allowed signers"))
        if trust.revoked is not None:
            (Path(folder) / "revoked").write_bytes(_list(trust.revoked, "the list of revoked keys"))
        yield Path(folder)


def _list(path: Path, called: str) -> bytes:
    """A list of the user's, as it is now. Raises WrongUse; also when everybody may add a key to it."""
    try:
        data, mode = _bytes_of(path, _LIST_LIMIT)
        if mode & stat.S_IWOTH:
            raise _Unreadable("everybody may write to it")
    except _Unreadable as fault:
        raise WrongUse(
            f"{called} cannot be taken: {fault}", where=str(path), hint="docs/bundles.md says what it is"
        ) from fault
    return data


class NoRegularFile(Exception):
    """A folder, a device, a FIFO."""


@contextmanager
def regular_file(path: Path, flags: int = 0) -> Iterator[tuple[IO[bytes], os.stat_result]]:
    """A file that is open, and what it is; opening a FIFO would wait for ever. Raises NoRegularFile, OSError."""
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
    """Why a file is not read."""


def _bytes_of(path: Path, limit: int, flags: int = 0) -> tuple[bytes, int]:
    """The bytes of a small regular file, and its mode. Raises _Unreadable."""
    try:
        with regular_file(path, flags) as (file, held):
            data = file.read(limit + 1)
    except NoRegularFile as fault:
        raise _Unreadable("it is no regular file") from fault
    except OSError as error:
        raise _Unreadable("it is a link" if path.is_symlink() and flags else str(error.strerror)) from error
    if len(data) > limit:
        raise _Unreadable(f"it has more than {limit} bytes")
    return data, held.st_mode


def _run(
    command: Sequence[str], file: IO[bytes] | None = None, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> _Said:
    """Run ssh-keygen with the bytes of `file`, from the first, on its standard input.

    Without `env` in an environment of nothing but what dates are read in: no OPENSSL_CONF, no LD_PRELOAD.
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
    """Write a chunk; False when the reader has seen enough."""
    left = memoryview(chunk)
    try:
        while left:
            left = left[os.write(pipe, left) :]
    except BrokenPipeError:
        return False
    return True
