"""The git side of one work tree: a git directory, a folder of files, and the questions that git answers about them.

The git directory may lie elsewhere (`--into` keeps its own, so that the owner's HEAD, branches and index stay as they are).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.errors import SourceMismatch, Where
from patchctl.git.locks import OWN, SNAPSHOT, STASH, put_in_place
from patchctl.git.run import GitFailed, GitRefused, git_environment, run_git

# Files are bytes: an upstream's .gitattributes must not turn them into something else in our trees.
_ATTRIBUTES = "* -text -filter -ident -working-tree-encoding\n"
# A person may have chosen to see a part of the tree only: what is there is kept all the same.
_WHOLE = ("-c", "core.sparseCheckout=false")
# What killed runs leave in objects/pack, and what those of an earlier version left.
UNFINISHED_PACKS = (".pack-*.new", ".tmp-pack-*")
_TIP_REF, _BASE_REF = "refs/patchctl/tip", "refs/patchctl/base"


class WorkTree:
    """`git_dir` and `folder`. Nothing here writes a file of the tree itself."""

    def __init__(self, git_dir: Path, folder: Path) -> None:
        self.git_dir = git_dir
        self.folder = folder

    def git(self, *args: str, stdin: bytes | None = None, index: Path | None = None) -> bytes:
        """Run git on this tree, isolated; with `index`, on that index file."""
        config = (("safe.directory", str(self.folder)), ("safe.directory", str(self.git_dir)))
        where = [f"--git-dir={self.git_dir}", f"--work-tree={self.folder}"]
        cwd = self.folder if self.folder.is_dir() else None
        with git_environment(config) as env:
            if index is not None:
                env["GIT_INDEX_FILE"] = str(index)
            try:
                return run_git([*where, *args], env=env, stdin=stdin, cwd=cwd)
            except (GitFailed, GitRefused) as failure:
                failure.where = Where(str(self.git_dir))
                raise

    def candidates(self, commit: str) -> list[bytes]:
        """Paths whose file may differ from `commit`, by git's stat cache: no edit is missed, some named are none."""
        out = self.git("diff-index", "-z", "--name-only", "--no-renames", "--ignore-submodules", commit)
        return [p for p in out.split(b"\0") if p]

    def head(self) -> str | None:
        """The commit that HEAD names, or None when there is none yet."""
        try:
            text = (self.git_dir / "HEAD").read_text(encoding="ascii").strip()
            if re.fullmatch("[0-9a-f]{40}", text):  # detached, as we leave it: no process for the usual case
                return text
            return self.git("rev-parse", "--verify", "-q", "HEAD").decode().strip()
        except GitFailed:
            return None

    def untracked(self) -> list[bytes]:
        """Files that are neither tracked nor ignored. A repository inside the tree is none of ours and not among them."""
        out = self.git("ls-files", "-z", "--others", "--exclude-standard")
        return [p for p in out.split(b"\0") if p and not p.endswith(b"/")]

    def ignored(self, ours: Collection[str]) -> list[bytes]:
        """Untracked files that git leaves out of its status, but for `ours` and Python's bytecode, which nobody misses."""
        out = self.git("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
        found = [p for p in out.split(b"\0") if p and os.fsdecode(p) not in ours]
        return [p for p in found if not p.endswith(b".pyc")]

    def passed_over(self) -> dict[bytes, str]:
        """Tracked files whose edits git does not look for (skip-worktree, assume-unchanged), with the index's blob ids."""
        found = {}
        for line in self.git("ls-files", "-z", "-v", "-s").split(b"\0"):
            tag, _, rest = line.partition(b" ")
            if tag == b"S" or tag.islower():
                about, _, path = rest.partition(b"\t")
                found[path] = about.split()[1].decode("ascii")
        return found

    def write_index(self, commit: str) -> list[bytes]:
        """Make the index that of `commit` and read every file anew whose stat is not known; returns those that differ.

        Raises LocalEdits when another git holds the index.
        """
        index, own = self.git_dir / "index", self.git_dir / f"index{OWN}"
        own.unlink(missing_ok=True)
        if index.exists():  # with what git knows of the files that stay
            shutil.copyfile(index, own)
        self.git("read-tree", "--reset", commit, index=own)
        differing = self._refresh(own)
        put_in_place(own, index)
        return differing

    def _refresh(self, index: Path) -> list[bytes]:
        try:
            self.git("update-index", "--refresh", index=index)  # -q would hide why it cannot write
            return []
        except GitFailed as failure:
            if failure.status != 1:
                raise
        found = self.git("diff-files", "-z", "--name-only", "--ignore-submodules", index=index)
        return [p for p in found.split(b"\0") if p]

    def snapshot(self, commit: str, paths: Iterable[bytes]) -> str:
        """The tree id of `commit` with these paths as they are on disk, ignored ones too; the index stays as it is."""
        own = self.git_dir / SNAPSHOT
        own.unlink(missing_ok=True)
        named = b"\0".join(paths)
        try:
            self.git(*_WHOLE, "read-tree", commit, index=own)
            if named:
                listed = ("--pathspec-from-file=-", "--pathspec-file-nul")
                self.git(*_WHOLE, "--literal-pathspecs", "add", "--all", "--force", *listed, stdin=named, index=own)
            return self.git("write-tree", index=own).decode().strip()
        finally:
            own.unlink(missing_ok=True)

    def new_branch(self, tree: str, parent: str) -> str:
        """Commit `tree` on top of `parent` to the first free branch patchctl-stash-N; returns its name."""
        commit = self.git("commit-tree", tree, "-p", parent, "-m", "Edits found in the tree, kept by patchctl")
        return self.keep(commit.decode().strip())

    def keep(self, commit: str) -> str:
        """Make the first free branch patchctl-stash-N of a commit; returns its name."""
        refs = self.git("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/").decode().split()
        taken = {ref.partition("/")[0] for ref in refs}  # STASH-1/x leaves no room for STASH-1
        name = next(f"{STASH}-{n}" for n in range(1, len(taken) + 2) if f"{STASH}-{n}" not in taken)
        self.git("update-ref", f"refs/heads/{name}", commit, "0" * 40)
        return name

    def set_refs(self, base: str, tip: str, *, head: bool = False) -> None:
        """Keep both commits from being collected; with `head`, detach HEAD at the tip as `git checkout --detach` does.

        Raises LocalEdits when another git holds HEAD.
        """
        self.git("update-ref", "--stdin", stdin=f"update {_BASE_REF} {base}\nupdate {_TIP_REF} {tip}\n".encode())
        file, own = self.git_dir / "HEAD", self.git_dir / f"HEAD{OWN}"
        if not head or (file.is_file() and file.read_bytes() == tip.encode() + b"\n"):
            return
        before = self.head() or "0" * 40
        own.write_bytes(tip.encode() + b"\n")
        put_in_place(own, file)
        log = self.git_dir / "logs" / "HEAD"
        log.parent.mkdir(exist_ok=True)
        with log.open("a", encoding="ascii") as out:
            out.write(f"{before} {tip} patchctl <patchctl@localhost> {int(time.time())} +0000\tpatchctl\n")

    def drop_refs(self) -> None:
        """Take our references out again, where there are any, and the empty folder that git leaves of them.

        Raises LocalEdits when another git holds the packed references, and ours are among them.
        """
        store = object_store(self.git_dir).parent
        if (store / "reftable").is_dir():
            if self.git("for-each-ref", "refs/patchctl/"):
                self.git("update-ref", "--stdin", stdin=f"delete {_BASE_REF}\ndelete {_TIP_REF}\n".encode())
            return
        if holds_packed(store):  # by ourselves: git's lock of a killed run could not be told from another's
            file, own = store / "packed-refs", store / f"packed-refs{OWN}"
            ours = tuple(f" {ref}\n".encode() for ref in (_BASE_REF, _TIP_REF))
            own.unlink(missing_ok=True)
            own.write_bytes(b"".join(r for r in file.read_bytes().splitlines(keepends=True) if not r.endswith(ours)))
            put_in_place(own, file)
        for ref in (_BASE_REF, _TIP_REF):  # no lock: nobody else writes them
            (store / ref).unlink(missing_ok=True)
        try:
            (store / "refs" / "patchctl").rmdir()
        except OSError:  # not there: the references were packed; or a person put others beside ours
            pass

    def has(self, oid: str) -> bool:
        """Whether an object is in this repository."""
        try:
            self.git("cat-file", "-e", oid)
        except GitFailed as failure:
            if failure.status != 1:  # git could not tell
                raise
            return False
        return True


def base_ref(git_dir: Path, which: str = "base") -> str | None:
    """The commit of our reference `base` or `tip`, by the files of a git directory that git may be unable to read."""
    name = f"refs/patchctl/{which}"
    try:
        loose, packed = git_dir / name, git_dir / "packed-refs"
        lines = packed.read_text(encoding="ascii", errors="replace").splitlines() if packed.is_file() else []
        lines = [loose.read_text(encoding="ascii", errors="replace").strip() + f" {name}"] if loose.is_file() else lines
    except OSError:
        return None
    found = next((line for line in lines if line.endswith(f" {name}")), "")[:40]
    return found if re.fullmatch("[0-9a-f]{40}", found) else None


def holds_packed(store: Path) -> bool:
    """Whether our references are among the packed ones of this git directory."""
    file = store / "packed-refs"
    return file.is_file() and b" refs/patchctl/" in file.read_bytes()


def create_git_dir(git_dir: Path, exclude: Iterable[str], *, file_modes: bool = True) -> None:
    """A new, empty, ordinary git directory that holds nothing of the user's templates or settings."""
    git_dir.parent.mkdir(parents=True, exist_ok=True)
    run_git(["init", "-q", "--bare", "--template=", str(git_dir)])
    run_git(["config", "--file", str(git_dir / "config"), "core.bare", "false"])
    run_git(["config", "--file", str(git_dir / "config"), "core.autocrlf", "false"])
    if not file_modes:
        run_git(["config", "--file", str(git_dir / "config"), "core.fileMode", "false"])
    info = git_dir / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text(_ATTRIBUTES, encoding="ascii")
    (info / "exclude").write_text("".join(f"/{path}\n" for path in exclude), encoding="utf-8")
    (git_dir / "HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")


def add_exclude(git_dir: Path, paths: Iterable[str]) -> None:
    """Ignore these paths too."""
    file = git_dir / "info" / "exclude"
    have = file.read_text(encoding="utf-8") if file.exists() else ""
    missing = [f"/{p}\n" for p in paths if f"/{p}\n" not in have]
    if missing:
        replace_file(file, (have + "".join(missing)).encode())


def import_base(git_dir: Path, source: Path, *, anew: bool = False) -> None:
    """Bring every object of a cached base into `git_dir`, and its shallow boundary with it. Raises SourceMismatch."""
    for pack in (source / "objects" / "pack").glob("*.pack"):
        bring_pack(pack, git_dir / "objects" / "pack", anew=anew)
    boundary = source / "shallow"
    if boundary.exists():
        own = git_dir / "shallow"
        lines = set(own.read_text(encoding="ascii").split()) if own.exists() else set()
        merged = sorted(lines | set(boundary.read_text(encoding="ascii").split()))
        replace_file(own, "".join(f"{line}\n" for line in merged).encode())


def bring_pack(pack: Path, folder: Path, *, anew: bool = False) -> None:
    """Copy a pack and its index into another object store. Raises SourceMismatch when either was changed. With `anew`,
    one that is there already is replaced where its bytes are others.

    A copy and not a hard link: a byte that changes in the cache must not change a workspace. git compares the digest at
    a pack's end in `git fsck` only, and a tree that is written half before a bad object is met is what nobody wants.
    """
    for source in (pack, pack.with_suffix(".idx")):
        target = folder / source.name
        if target.exists() and not anew:
            continue
        data = _read_whole(source)
        if target.exists() and target.read_bytes() == data:
            continue
        replace_file(target, data, 0o444)  # on disk, since the journal will count on it


def _read_whole(file: Path) -> bytes:
    """A file of the cache that ends with its own digest. Raises SourceMismatch when it is another one, or not there."""
    hint = "`patchctl fetch --refresh` fetches it again"
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise SourceMismatch("the file is gone", where=str(file), hint=hint) from None
    if not ends_with_digest(data):
        raise SourceMismatch("the file was changed: its digest is another one", where=str(file), hint=hint)
    return data


def ends_with_digest(data: bytes) -> bool:
    """Whether a pack's or an index's last 20 bytes are the SHA-1 of all that goes before."""
    return hashlib.sha1(data[:-20], usedforsecurity=False).digest() == data[-20:]


def find_git_dir(folder: Path) -> Path | None:
    """The git directory of a checkout whose top is exactly `folder`, or None. Never looks upward (wine-staging#7)."""
    dot = folder / ".git"
    if dot.is_dir():
        return dot
    if dot.is_file():  # a worktree or a submodule: one line `gitdir: PATH`
        text = dot.read_text(encoding="utf-8", errors="replace").strip()
        if text.startswith("gitdir: "):
            target = Path(os.path.normpath(folder / text[len("gitdir: ") :]))
            return target if target.is_dir() else None
    return None


def object_store(git_dir: Path) -> Path:
    """Where a git directory keeps its objects; a linked worktree shares those of its main repository."""
    common = git_dir / "commondir"
    if common.is_file():
        git_dir = Path(os.path.normpath(git_dir / common.read_text(encoding="utf-8").strip()))
    return git_dir / "objects"
