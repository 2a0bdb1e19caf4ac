"""Signatures of bundles, made by the real ssh-keygen: what counts, and everything that looks like one and does not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from distribution import CLOCK, GREETER, Made, make_distribution, run_patchctl
from on_disk import snapshot
from test_hostile_bundles import framed, index_of

from patchctl.bundle.layout import DISTRIBUTION, extents, render_index
from patchctl.bundle.reader import Bundle, open_bundle
from patchctl.bundle.signature import BUNDLE, SigningKey, Trust, signature_file
from patchctl.errors import NotTrusted, PatchctlError, SourceMismatch, WrongUse

KEYGEN = shutil.which("ssh-keygen")
pytestmark = pytest.mark.skipif(KEYGEN is None, reason="no ssh-keygen here")
KINDS = {"alice": "ed25519", "bob": "rsa", "carol": "ecdsa", "mallory": "ed25519"}
WHO = "release@example.com"


def keygen(*args: str | Path, stdin: bytes = b"") -> bytes:
    return subprocess.run([str(KEYGEN), *map(str, args)], input=stdin, check=True, capture_output=True).stdout


@dataclass(frozen=True)
class Keys:
    """A private key a person, NAME, with NAME.pub beside it."""

    folder: Path

    def private(self, name: str) -> Path:
        return self.folder / name

    def public(self, name: str) -> str:
        return (self.folder / f"{name}.pub").read_text()

    def sign(self, name: str, data: bytes, namespace: str = BUNDLE.namespace) -> bytes:
        return keygen("-Y", "sign", "-n", namespace, "-f", self.private(name), stdin=data)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("keys")
    for name, kind in KINDS.items():
        keygen("-q", "-t", kind, "-N", "", "-C", name, "-f", folder / name)
    return Keys(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_distribution(tmp_path_factory.mktemp("signed"), (GREETER, CLOCK), lock=True)


@pytest.fixture(scope="module")
def good(made: Made, keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle signed by alice. Read only."""
    out = tmp_path_factory.mktemp("good") / "full.tar"
    made.good("bundle", "create", "-p", "full", "-o", str(out), "--sign", str(keys.private("alice")))
    return out


@dataclass(frozen=True)
class Case:
    """A bundle of one's own with its signature, and the lists that it is held against."""

    bundle: Path
    allowed: Path
    revoked: Path
    keys: Keys

    @property
    def signature(self) -> Path:
        return signature_file(self.bundle)

    def allow(self, *names: str, options: str = "") -> None:
        self.allowed.write_text("".join(f"{WHO} {options} {self.keys.public(n)}" for n in names))

    def open(self, *, required: bool = True) -> Bundle:
        revoked = self.revoked if self.revoked.exists() else None
        return open_bundle(self.bundle, trust=Trust(self.allowed, revoked, required))

    def refused(self) -> PatchctlError:
        with pytest.raises((NotTrusted, WrongUse)) as caught:
            self.open()
        assert str(caught.value).isprintable()
        return caught.value


@pytest.fixture
def case(good: Path, keys: Keys, tmp_path: Path) -> Case:
    """All is well: alice signed, and alice is allowed."""
    bundle = tmp_path / "full.tar"
    shutil.copy(good, bundle)
    shutil.copy(signature_file(good), signature_file(bundle))
    case = Case(bundle, tmp_path / "allowed_signers", tmp_path / "revoked", keys)
    case.allow("alice")
    return case


def redigested(data: bytes) -> bytes:
    """Another word in a patch, as long as the one before, and every digest mended: nothing in the file tells."""
    index, after = index_of(data)
    held = list(extents(index.members, after))
    contents = [(e.member.name, data[e.start : e.start + e.member.size]) for e in held]
    contents = [(name, content.replace(b'+    text = "Hello', b'+    text = "Howdy')) for name, content in contents]
    members = [
        replace(e.member, sha256=hashlib.sha256(content).hexdigest())
        for e, (_, content) in zip(held, contents, strict=True)
    ]
    forged = framed(render_index(replace(index, members=tuple(members))), contents)
    assert len(forged) == len(data) and forged != data
    return forged


def test_what_is_signed_is_taken_and_says_by_whom(case: Case) -> None:
    signature = case.open().signature
    assert signature is not None
    assert [(s.principal, s.key.split()[0]) for s in signature.signers] == [(WHO, "ED25519")]


def test_nothing_in_a_redigested_bundle_tells(case: Case) -> None:
    """Which is what signatures are for."""
    case.bundle.write_bytes(redigested(case.bundle.read_bytes()))
    assert open_bundle(case.bundle).signature is None


def test_the_bundle_has_the_same_bytes_signed_or_not(made: Made, good: Path, tmp_path: Path) -> None:
    out = tmp_path / "plain.tar"
    made.good("bundle", "create", "-p", "full", "-o", str(out))
    assert out.read_bytes() == good.read_bytes() and not signature_file(out).exists()


@pytest.mark.parametrize(("name", "kind"), [("alice", "ED25519"), ("bob", "RSA"), ("carol", "ECDSA")])
def test_ssh_keygen_alone_makes_and_checks_the_same(case: Case, name: str, kind: str) -> None:
    """A machine that only signs needs no patchctl, nor does one that only checks."""
    case.signature.unlink()
    keygen("-Y", "sign", "-n", BUNDLE.namespace, "-f", case.keys.private(name), case.bundle)
    case.allow(name)
    signature = case.open().signature
    assert signature is not None and signature.signers[0].key.startswith(f"{kind} SHA256:")
    own = SigningKey.load(case.keys.private(name))
    with case.bundle.open("rb") as file:
        case.signature.write_bytes(own.sign(file.fileno(), signature.sha256))
    line = ("-Y", "verify", "-n", BUNDLE.namespace, "-I", WHO, "-f", case.allowed, "-s", case.signature)
    keygen(*line, stdin=case.bundle.read_bytes())
    assert own.signer.key == signature.signers[0].key


Fault = Callable[[Case], object]


def other_bundle(case: Case) -> None:
    case.signature.write_bytes(case.keys.sign("alice", redigested(case.bundle.read_bytes())))


def other_namespace(case: Case) -> None:
    case.signature.write_bytes(case.keys.sign("alice", case.bundle.read_bytes(), "git"))


def by_mallory(case: Case) -> None:
    case.signature.write_bytes(case.keys.sign("mallory", case.bundle.read_bytes()))


def krl(case: Case) -> None:
    keygen("-k", "-f", case.revoked, case.keys.folder / "alice.pub")


def linked(case: Case) -> None:
    case.signature.rename(case.signature.with_name("elsewhere"))
    case.signature.symlink_to("elsewhere")


def piped(case: Case) -> None:
    case.signature.unlink()
    os.mkfifo(case.signature)


def sparse(case: Case) -> None:
    os.truncate(case.signature, 1 << 34)


def many(case: Case) -> None:
    data = case.bundle.read_bytes()
    case.signature.write_bytes(b"".join(case.keys.sign("alice", data + bytes([n])) for n in range(9)))


def base64_cut(case: Case) -> None:
    lines = case.signature.read_bytes().splitlines(keepends=True)
    case.signature.write_bytes(b"".join([*lines[:2], lines[-1]]))


FAULTS: dict[str, tuple[Fault, str]] = {
    "redigested": (lambda c: c.bundle.write_bytes(redigested(c.bundle.read_bytes())), "modified after signing"),
    "one_bit": (lambda c: c.bundle.write_bytes(c.bundle.read_bytes()[:-1] + b"\1"), "modified after signing"),
    "of_another_bundle": (other_bundle, "modified after signing"),
    "of_another_namespace": (other_namespace, "its namespace is not patchctl-bundle"),
    "by_a_key_that_is_not_allowed": (by_mallory, "is not in"),
    "key_of_another_namespace": (lambda c: c.allow("alice", options='namespaces="git"'), "not permitted for use"),
    "expired": (lambda c: c.allow("alice", options='valid-before="20200101"'), "allowed_signers:1: key has expired"),
    "not_yet_valid": (lambda c: c.allow("alice", options='valid-after="29990101"'), "not yet valid"),
    "revoked_by_a_krl": (krl, "is revoked by"),
    "revoked_by_a_list": (lambda c: c.revoked.write_text(c.keys.public("alice")), "is revoked by"),
    "revoked_list_is_garbage": (lambda c: c.revoked.write_text("garbage\n"), "revoked"),
    "empty": (lambda c: c.signature.write_bytes(b""), "not a complete signature"),
    "truncated": (lambda c: c.signature.write_bytes(c.signature.read_bytes()[:-30]), "not a complete signature"),
    "cut_inside": (base64_cut, "cannot be read"),
    "garbage": (lambda c: c.signature.write_bytes(b"\x1b[2J" * 100), "not a complete signature"),
    "more_behind": (lambda c: c.signature.write_bytes(c.signature.read_bytes() + b"x"), "not a complete signature"),
    "very_large": (sparse, "larger than 65536 bytes"),
    "too_many": (many, "more than 8 signatures"),
    "link": (linked, "it is a link"),
    "pipe": (piped, "not a regular file"),
    "folder": (lambda c: (c.signature.unlink(), c.signature.mkdir()), "not a regular file"),
    "missing": (lambda c: c.signature.unlink(), "has no signature"),
    "list_is_missing": (lambda c: c.allowed.unlink(), "No such file"),
    "list_is_empty": (lambda c: c.allowed.write_text(""), "is not in"),
    "list_is_garbage": (lambda c: c.allowed.write_bytes(b"\xff\x1b[2J\n"), "allowed_signers"),
    "list_is_for_everybody_to_write": (lambda c: c.allowed.chmod(0o666), "world-writable"),
    "list_is_a_folder": (lambda c: (c.allowed.unlink(), c.allowed.mkdir()), "not a regular file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_count_is_refused_and_says_why(case: Case, fault: str) -> None:
    harm, reason = FAULTS[fault]
    harm(case)
    error = case.refused()
    assert reason in str(error), str(error)
    assert error.code == (2 if fault.startswith("list_is_") and isinstance(error, WrongUse) else 3)


def test_each_of_several_signatures_counts_for_itself(case: Case) -> None:
    """A key that is being replaced, or two people: a stranger's beside them takes nothing away, and adds nothing."""
    data = case.bundle.read_bytes()
    both = [case.keys.sign(name, data) for name in ("mallory", "bob")]
    case.signature.write_bytes(b"".join(both) + case.signature.read_bytes())
    case.allow("alice", "bob")
    signature = case.open().signature
    assert signature is not None and [s.key.split()[0] for s in signature.signers] == ["RSA", "ED25519"]
    case.allow("carol")
    said = str(case.refused())
    assert said.count("is not in") == 3


def test_a_certificate_of_an_allowed_authority_counts(case: Case) -> None:
    keygen("-q", "-s", case.keys.private("carol"), "-I", "x", "-n", WHO, "-V", "+1h", case.keys.folder / "bob.pub")
    certificate = case.keys.folder / "bob-cert.pub"
    case.signature.unlink()
    keygen("-Y", "sign", "-n", BUNDLE.namespace, "-f", certificate, case.bundle)
    case.allow("carol", options="cert-authority")
    certificate.unlink()
    assert case.open().signature is not None
    case.allow("carol")
    assert "is not in" in str(case.refused())


VERBS = (
    ("apply", "--bundle", "FILE", "-p", "full", "--workspace", "ws"),
    ("fetch", "--bundle", "FILE", "-p", "full"),
    ("verify", "--bundle", "FILE"),
    ("bundle", "verify", "FILE"),
    ("bundle", "show", "FILE"),
    ("bundle", "unpack", "FILE", "--to", "to"),
    ("cluster", "apply", "--address", "127.0.0.1:1", "--bundle", "FILE", "-p", "full"),
)


def run(case: Case, home: Path, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run_patchctl(*(str(case.bundle) if a == "FILE" else a for a in args), home=home, env=env)


def configure(home: Path, case: Case, policy: str) -> None:
    folder = home / ".config" / "patchctl"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"bundles:\n  signatures: {policy}\n  allowed_signers: {case.allowed}\n")


@pytest.mark.parametrize("args", VERBS, ids=lambda args: "-".join(args[:2]).replace("---bundle", ""))
@pytest.mark.parametrize("asked", ["by-option", "by-configuration"])
def test_no_verb_takes_anything_from_it_before_the_signature_counts(
    case: Case, args: tuple[str, ...], asked: str, tmp_path: Path
) -> None:
    case.bundle.write_bytes(redigested(case.bundle.read_bytes()))
    home = tmp_path / "home"
    if asked == "by-configuration":
        configure(home, case, "require")
    else:
        home.mkdir(exist_ok=True)
        args = (*args, "--allowed-signers", str(case.allowed))
    before = snapshot(tmp_path)
    done = run(case, home, *args, "--json")
    assert done.returncode == 3, done.stderr
    assert "modified after signing" in done.stderr and json.loads(done.stdout)["error"]["kind"] == "not-trusted"
    assert snapshot(tmp_path) == before


def test_require_takes_what_is_signed(case: Case, tmp_path: Path) -> None:
    home = tmp_path / "home"
    configure(home, case, "require")
    done = run(case, home, "apply", "--bundle", "FILE", "-p", "full", "--workspace", "ws")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    found = json.loads(run(case, home, "bundle", "verify", "FILE", "--json").stdout)
    assert found["signature"]["signers"][0]["principal"] == WHO and found["distrust"] is None


def test_warn_is_one_line_beside_clean_json(case: Case, tmp_path: Path) -> None:
    home = tmp_path / "home"
    configure(home, case, "warn")
    good = run(case, home, "bundle", "verify", "FILE", "--json")
    assert good.stderr == "" and json.loads(good.stdout)["signature"]["signers"]
    case.signature.unlink()
    done = run(case, home, "apply", "--bundle", "FILE", "-p", "full", "--workspace", "ws", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["trees"]
    (line,) = done.stderr.splitlines()
    assert line.startswith("patchctl: warning: ") and "has no signature" in line
    found = json.loads(run(case, home, "bundle", "show", "FILE", "--json").stdout)
    assert found["signature"] is None and "has no signature" in found["distrust"]
    asked = run(case, home, "fetch", "--bundle", "FILE", "-p", "full", "--allowed-signers", str(case.allowed))
    assert asked.returncode == 3


@pytest.mark.parametrize("policy", ["off", "'off'", None])
def test_off_looks_at_nothing(case: Case, policy: str | None, tmp_path: Path) -> None:
    home = tmp_path / "home"
    if policy:
        configure(home, case, policy)
    case.signature.write_bytes(b"garbage")
    done = run(case, home, "bundle", "verify", "FILE", "--json")
    assert done.returncode == 0 and done.stderr == "" and json.loads(done.stdout)["signature"] is None
    assert "full.tar.sig was not looked at" in run(case, home, "bundle", "verify", "FILE").stdout


def test_allowed_signers_without_a_bundle_is_wrong_use(case: Case, tmp_path: Path) -> None:
    done = run(case, tmp_path / "home", "fetch", "-p", "full", "--allowed-signers", str(case.allowed))
    assert done.returncode == 2 and "--bundle FILE" in done.stderr


def standing_in(folder: Path, script: str) -> dict[str, str]:
    """A PATH whose ssh-keygen is this script, which may call the real one."""
    folder.mkdir()
    (folder / "ssh-keygen").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "ssh-keygen").chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def after_verify(what: str) -> str:
    """The real ssh-keygen, and what somebody else does as soon as it has found a signature good."""
    return f'{KEYGEN} "$@"; status=$?\ncase "$*" in *" verify "*) {what} ;; esac\nexit $status'


@pytest.mark.parametrize("how", ["over-it", "in-its-place"])
def test_a_bundle_that_is_exchanged_after_its_signature_was_checked(case: Case, how: str, tmp_path: Path) -> None:
    """Written over it: seen when it is read. Put in its place: seen when a file is taken out of it."""
    evil = tmp_path / "evil.tar"
    evil.write_bytes(redigested(case.bundle.read_bytes()))
    swap = f'cat "{evil}" >"{case.bundle}"' if how == "over-it" else f'mv "{evil}" "{case.bundle}"'
    env = standing_in(tmp_path / "bin", after_verify(swap))
    line = ("bundle", "unpack", "FILE", "--to", str(tmp_path / "to"), "--allowed-signers", str(case.allowed))
    done = run(case, tmp_path / "home", *line, env=env)
    assert done.returncode == 3 and "was modified while" in done.stderr, done.stdout + done.stderr
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(("what", "said"), [("signature", "modified after signing"), ("list", "is not in")])
def test_a_signature_and_a_list_that_are_exchanged_are_read_once(
    case: Case, what: str, said: str, tmp_path: Path
) -> None:
    """A forged bundle, for which a right signature, or a list with mallory in it, comes while the check is at work."""
    case.bundle.write_bytes(redigested(case.bundle.read_bytes()))
    by_mallory = case.keys.sign("mallory", case.bundle.read_bytes())
    later = tmp_path / "later"
    if what == "signature":
        case.allow("alice", "mallory")
        later.write_bytes(by_mallory)
    else:
        case.signature.write_bytes(by_mallory)
        later.write_text(f"{WHO} {case.keys.public('mallory')}")
    there = case.signature if what == "signature" else case.allowed
    script = f'case "$*" in *" find-principals -s "*) cat "{later}" >"{there}" ;; esac\nexec {KEYGEN} "$@"'
    env = standing_in(tmp_path / "bin", script)
    done = run(case, tmp_path / "home", "bundle", "show", "FILE", "--allowed-signers", str(case.allowed), env=env)
    assert done.returncode == 3 and said in done.stderr, done.stderr
    assert case.open().signature is not None  # a later run sees it


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'unknown option -- Y' >&2; exit 1", "older than OpenSSH 8.2"),
        ("echo 'Unsupported operation for -Y: \"find-principals\"' >&2; exit 255", "older than OpenSSH 8.2"),
        ("echo 'No user exists for uid 4711' >&2; exit 255", "No user exists for uid 4711"),
        ("exit 126", "does not work here"),
    ],
)
def test_an_ssh_keygen_that_cannot_check(case: Case, script: str, said: str, tmp_path: Path) -> None:
    """Scripts stand for OpenSSH 8.0 and 8.1, for a container's user without a name, and for one that does not run."""
    env = standing_in(tmp_path / "bin", script)
    done = run(case, tmp_path / "home", "bundle", "verify", "FILE", "--allowed-signers", str(case.allowed), env=env)
    assert done.returncode == 2 and said in done.stderr


def test_an_ssh_keygen_in_the_current_folder_is_never_run(case: Case, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (home / "ssh-keygen").write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran"\n')
    (home / "ssh-keygen").chmod(0o755)
    env = {"PATH": f".{os.pathsep}{os.pathsep}{os.environ['PATH']}"}
    done = run(case, home, "bundle", "verify", "FILE", "--allowed-signers", str(case.allowed), env=env)
    assert done.returncode == 0 and not (tmp_path / "ran").exists()


def test_without_ssh_keygen(case: Case, made: Made, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(str(shutil.which("git")))
    env = {"PATH": str(tmp_path / "bin")}
    done = run(case, tmp_path / "home", "bundle", "verify", "FILE", "--allowed-signers", str(case.allowed), env=env)
    assert done.returncode == 2 and "was not found on PATH" in done.stderr and "openssh-client" in done.stderr
    out = tmp_path / "out.tar"
    line = ("bundle", "create", "-p", "full", "-o", str(out), "--sign", str(case.keys.private("alice")))
    done = made.patchctl(*line, env=env)
    assert done.returncode == 2 and "was not found on PATH" in done.stderr and not out.exists()
    assert run(case, tmp_path / "home", "bundle", "verify", "FILE", env=env).returncode == 0


def test_openssl_is_not_configured_by_the_environment(case: Case, tmp_path: Path) -> None:
    """OPENSSL_CONF may name a library that is then loaded; whoever sets it does not decide what a signature is."""
    seen = tmp_path / "seen"
    env = standing_in(tmp_path / "bin", f'env >>"{seen}"\nexec {KEYGEN} "$@"')
    env |= {"OPENSSL_CONF": "/tmp/evil.cnf", "LD_PRELOAD": "", "SSH_SK_PROVIDER": "/tmp/evil.so"}
    done = run(case, tmp_path / "home", "bundle", "verify", "FILE", "--allowed-signers", str(case.allowed), env=env)
    assert done.returncode == 0, done.stderr
    assert not {"OPENSSL_CONF", "LD_PRELOAD", "SSH_SK_PROVIDER"} & {
        line.partition("=")[0] for line in seen.read_text().splitlines()
    }


@pytest.fixture
def agent(keys: Keys, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An ssh-agent that has bob's private key."""
    socket = tmp_path / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as process:
        env = {"SSH_AUTH_SOCK": str(socket)}
        try:
            for _ in range(100):
                if socket.exists():
                    break
                process.poll()
                subprocess.run(["sleep", "0.05"], check=True)
            subprocess.run(["ssh-add", "-q", str(keys.private("bob"))], env={**os.environ, **env}, check=True)
            yield env
        finally:
            process.terminate()


def test_a_key_that_an_agent_has(made: Made, keys: Keys, case: Case, agent: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bob.pub").write_text(keys.public("bob"))
    (tmp_path / "carol.pub").write_text(keys.public("carol"))
    line = ("bundle", "create", "-p", "full", "-o", str(case.bundle), "--json", "--sign")
    created = json.loads(made.good(*line, str(tmp_path / "bob.pub"), env=agent))
    assert created["signature"]["signers"] == [
        {"principal": None, "key": created["signature"]["signers"][0]["key"]}
    ] and created["signature"]["file"] == str(case.signature)
    case.allow("bob")
    assert case.open().signature is not None
    before = snapshot(case.bundle.parent)
    done = made.patchctl(*line, str(tmp_path / "carol.pub"), env=agent)
    assert done.returncode == 2 and "was not written" in done.stderr
    assert snapshot(case.bundle.parent) == before


@pytest.mark.parametrize("kind", ["missing", "garbage", "folder", "passphrase"])
def test_a_key_that_cannot_sign_writes_nothing(made: Made, kind: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    if kind == "garbage":
        key.write_text("garbage\n")
    elif kind == "folder":
        key.mkdir()
    elif kind == "passphrase":
        keygen("-q", "-t", "ed25519", "-N", "secret", "-f", key)
    out = tmp_path / "out.tar"
    line = [sys.executable, "-m", "patchctl", f"--root={made.root}", f"--cache={made.cache}", "bundle", "create"]
    env = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "SSH_ASKPASS", "SSH_AUTH_SOCK")}
    done = subprocess.run(
        [*line, "-p", "full", "-o", str(out), "--sign", str(key)],
        env={**env, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 2 and str(key) in done.stderr, done.stderr
    assert not [p for p in tmp_path.iterdir() if "out.tar" in p.name]


def test_a_signature_that_cannot_be_written_leaves_the_bundle_that_was_there(
    made: Made, keys: Keys, tmp_path: Path
) -> None:
    out = tmp_path / "out.tar"
    out.write_text("old")
    signature_file(out).mkdir()
    done = made.patchctl("bundle", "create", "-p", "full", "-o", str(out), "--sign", str(keys.private("alice")))
    assert done.returncode == 2 and "this is a folder" in done.stderr
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out.tar", "out.tar.sig"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_it_signs(made: Made, case: Case, when: str, tmp_path: Path) -> None:
    """The bundle and the signature that were there are still a pair, and the next run makes a new one."""
    made_again = ("bundle", "create", "-p", "plain", "-o", str(case.bundle), "--sign", str(case.keys.private("bob")))
    before = case.bundle.read_bytes(), case.signature.read_bytes()
    end = f'{KEYGEN} "$@"; kill -9 $PPID' if when == "after" else "kill -9 $PPID"
    env = standing_in(tmp_path / "bin", f'case "$*" in *"-Y sign "*) {end}; exit ;; esac\nexec {KEYGEN} "$@"')
    assert made.patchctl(*made_again, env=env).returncode == -9
    assert (case.bundle.read_bytes(), case.signature.read_bytes()) == before and case.open().signature
    made.good(*made_again)
    case.allow("bob")
    assert case.bundle.read_bytes() != before[0] and case.open().signature


def test_what_changed_after_the_check_is_not_taken_out(case: Case) -> None:
    bundle = case.open()
    case.bundle.write_bytes(redigested(case.bundle.read_bytes()))
    with pytest.raises(SourceMismatch, match="was modified while the bundle was in use"):
        bundle.read(f"{DISTRIBUTION}patches/greeter/v1/typo/0001-bugfix-typo.patch")
