"""The git side of a work tree: a git directory, a folder of files, and git's answers about them.

The git directory may be elsewhere: `--in-place` keeps its own, so that the owner's HEAD, branches and index stay
untouched.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from patchctl.atomic import replace_file
from patchctl.errors import Where
from patchctl.git.index import IndexChange, NotPlain, changed, made_anew, summary
from patchctl.git.locks import OWN, SNAPSHOT, STASH, place_new, put_in_place
from patchctl.git.pack import bring_pack
from patchctl.git.packread import holds
from patchctl.git.run import (
    ATTRIBUTES,
    GitFailed,
    GitRefused,
    common_folder,
    foreign_environment,
    run_git,
)

# Leftovers of killed runs in objects/pack; the second pattern is an earlier version's.
UNFINISHED_PACKS = (".pack-*.new", ".tmp-pack-*")
_TIP_REF, _BASE_REF = "refs/patchctl/tip", "refs/patchctl/base"


# Lines of `git ls-files -v -s` for files that are not plainly tracked: tag, mode, blob, stage, path.
_MARKED = re.compile(rb"(?:^|(?<=\0))([SMa-z]) \d+ ([0-9a-f]+) \d\t([^\0]*)")
UNMERGED, SKIPPED = "M", "Ss"


class Mark(NamedTuple):
    """git's tag of an index entry and its blob. M: in conflict, S: skip-worktree, lower case: assume-unchanged."""

    tag: str
    blob: str


class WorkTree:
    """A work tree. Nothing here writes its files. With `file_modes`, a changed executable bit is an edit."""

    def __init__(self, git_dir: Path, folder: Path, *, file_modes: bool = True) -> None:
        self.git_dir = git_dir
        self.folder = folder
        self._file_modes = file_modes
        # Whether `candidates` last listed anything, be it for stat data alone, as in a copied tree.
        self.is_stale = False
        self._summaries: dict[tuple[int, int, int], tuple[bool, str | None]] = {}

    def git(self, *args: str, stdin: bytes | None = None, index: Path | None = None) -> bytes:
        """Run git on this tree, isolated from the tree's own settings too; with `index`, on that index file."""
        config = (("safe.directory", str(self.folder)), ("safe.directory", str(self.git_dir)))
        where = [f"--git-dir={self.git_dir}", f"--work-tree={self.folder}"]
        cwd = self.folder if self.folder.is_dir() else None
        env = foreign_environment(self.git_dir, config, file_modes=self._file_modes)
        if index is not None:
            env["GIT_INDEX_FILE"] = str(index)
        try:
            return run_git([*where, *args], env=env, stdin=stdin, cwd=cwd)
        except (GitFailed, GitRefused) as failure:
            failure.where = Where(str(self.git_dir))
            raise

    def candidates(self, commit: str) -> list[bytes]:
        """Return paths whose file or index entry may differ from `commit`, by git's stat cache.

        May list unmodified files, but misses no edit except in files with a mark, which git does not look at.
        """
        out = self.git("diff-index", "-z", "--name-only", "--no-renames", "--ignore-submodules=dirty", commit)
        found = [p for p in out.split(b"\0") if p]
        self.is_stale = bool(found)
        return found

    def staged(self, commit: str, tree: str | None = None) -> list[bytes]:
        """Return paths whose index entry differs from `commit`, including intent-to-add entries. With `tree`, the commit's,
        the usual case needs no process."""
        if tree is not None and (found := self._summary()) is not None and found[1] == tree:
            return []
        out = self.git("diff-index", "--cached", "-z", "--name-only", "--no-renames", commit)
        return [p for p in out.split(b"\0") if p]

    def head(self) -> str | None:
        """Return the commit of HEAD, or None on an unborn branch."""
        try:
            text = (self.git_dir / "HEAD").read_text(encoding="ascii").strip()
            if re.fullmatch("[0-9a-f]{40}", text):  # detached, as we leave it: the usual case needs no process
                return text
            return self.git("rev-parse", "--verify", "-q", "HEAD").decode().strip()
        except GitFailed:
            return None

    def untracked(self) -> list[bytes]:
        """Return files neither tracked nor ignored. Nested repositories are left out."""
        out = self.git("ls-files", "-z", "--others", "--exclude-standard")
        return [p for p in out.split(b"\0") if p and not p.endswith(b"/")]

    def _summary(self) -> tuple[bool, str | None] | None:
        """What the index says of itself, read once; None where that is left to git."""
        with contextlib.suppress(NotPlain, OSError):
            index = self.git_dir / "index"
            status = os.stat(index)
            seen = status.st_ino, status.st_size, status.st_mtime_ns
            if seen not in self._summaries:
                self._summaries = {seen: summary(index)}
            return self._summaries[seen]
        return None

    def marks(self) -> dict[bytes, Mark]:
        """Return tracked files that are in conflict, or flagged so that git does not look for edits."""
        if (found := self._summary()) is not None and not found[0]:
            return {}
        out = self.git("ls-files", "-z", "-v", "-s")
        return {m[3]: Mark(m[1].decode("ascii"), m[2].decode("ascii")) for m in _MARKED.finditer(out)}

    def write_index(self, commit: str) -> list[bytes]:
        """Set the index to `commit`, rereading every file with unknown stat data. Returns the files that differ.

        Flagged files that `commit` has stay flagged. Raises LocalEdits if another git holds the index.
        """
        index, own = self.git_dir / "index", self.git_dir / f"index{OWN}"
        drop_own_index(own)
        flagged = {p: mark.tag for p, mark in self.marks().items() if mark.tag != UNMERGED}
        if index.exists():  # keeps the stat data of files that stay
            shutil.copyfile(index, own)
        self.flag(flagged, own, no="no-")
        self.git("read-tree", "--reset", commit, index=own)
        differing = self._refresh(own)
        self.flag(flagged, own)
        put_in_place(own, index)
        return differing

    def change_index(self, change: IndexChange) -> list[bytes]:
        """Like `write_index`, by editing the index's bytes or creating it.

        Raises NotPlain before changing anything; LocalEdits if another git holds the index; OSError.
        """
        index, own = self.git_dir / "index", self.git_dir / f"index{OWN}"
        if not change.folders:  # the same tree
            raise NotPlain
        try:
            data, differing = changed(index, self.folder, change) if index.exists() else made_anew(self.folder, change)
        except OSError as error:  # let git try and name the cause; once we hold the lock, git could not
            raise NotPlain from error
        drop_own_index(own)
        own.write_bytes(data)
        put_in_place(own, index)
        return differing

    def refresh(self) -> None:
        """Update the stat data of unmodified files, so that later runs need not read them again.

        Raises LocalEdits if another git holds the index; OSError.
        """
        index, own = self.git_dir / "index", self.git_dir / f"index{OWN}"
        drop_own_index(own)
        shutil.copyfile(index, own)
        self._refresh(own)
        put_in_place(own, index)

    def _refresh(self, index: Path) -> list[bytes]:
        try:
            self.git("update-index", "--refresh", index=index)  # -q would hide a write error
            return []
        except GitFailed as failure:
            if failure.status != 1:
                raise
        found = self.git("diff-files", "-z", "--name-only", "--ignore-submodules", index=index)
        return [p for p in found.split(b"\0") if p]

    def flag(self, tags: Mapping[bytes, str], index: Path | None = None, *, no: str = "") -> None:
        """Set the flags that git's tags stand for on files in the index; with `no`, clear them."""
        known = set(self.git("ls-files", "-z", index=index).split(b"\0")) if tags else set()
        for option, has in (("skip-worktree", SKIPPED.__contains__), ("assume-unchanged", str.islower)):
            paths = b"\0".join(p for p, tag in tags.items() if has(tag) and p in known)
            if paths:
                self.git("update-index", f"--{no}{option}", "-z", "--stdin", stdin=paths, index=index)

    def snapshot(self, commit: str, paths: Iterable[bytes]) -> str:
        """Return the tree id of `commit` with `paths` as on disk, even if ignored. The index stays as it is."""
        top = os.fsencode(self.folder) + b"/"
        with self._own_index() as own:
            self.git("read-tree", commit, index=own)
            known = set(self.git("ls-files", "-z", index=own).split(b"\0"))
            named = b"\0".join(p for p in paths if p in known or os.path.lexists(top + p))
            if named:
                listed = ("--pathspec-from-file=-", "--pathspec-file-nul")
                self.git("--literal-pathspecs", "add", "--all", "--force", *listed, stdin=named, index=own)
            return self.git("write-tree", index=own).decode().strip()

    def staged_tree(self) -> str | None:
        """Return the index's tree id without intent-to-add entries; None without an index."""
        if not (self.git_dir / "index").exists():
            return None
        with self._own_index() as own:
            shutil.copyfile(self.git_dir / "index", own)
            return self.git("write-tree", index=own).decode().strip()

    @contextlib.contextmanager
    def _own_index(self) -> Iterator[Path]:
        own = self.git_dir / SNAPSHOT
        drop_own_index(own)
        try:
            yield own
        finally:
            drop_own_index(own)

    def new_branch(self, tree: str, parent: str, commit: str) -> str:
        """Commit `tree` on top of `parent` to the first free branch patchctl-stash-N; return its name.

        Staged content gets a commit of its own in between, unless its tree is `tree` or that of `parent` or `commit`.
        """
        staged = self.staged_tree()
        known = self.git("rev-parse", f"{parent}^{{tree}}", f"{commit}^{{tree}}").decode().split()
        if staged is not None and staged not in (tree, *known):
            parent = self._commit(staged, parent, "Staged in the index, kept by patchctl")
        return self.keep(self._commit(tree, parent, "Edits found in the tree, kept by patchctl"))

    def keep(self, commit: str) -> str:
        """Create the first free branch patchctl-stash-N at a commit; return its name."""
        names = self.git("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/", "refs/tags/").decode().split()
        taken = {
            n.partition("/")[0] for n in names
        }  # STASH-1/x rules out STASH-1, and a tag of that name would be ambiguous
        name = next(f"{STASH}-{n}" for n in range(1, len(taken) + 2) if f"{STASH}-{n}" not in taken)
        (common_folder(self.git_dir) / "logs").mkdir(exist_ok=True)
        self.git("update-ref", f"refs/heads/{name}", commit, "0" * 40)
        return name

    def drop_branch(self, name: str) -> None:
        """Delete a branch that `new_branch` made."""
        self.git("update-ref", "-d", f"refs/heads/{name}")

    def _commit(self, tree: str, parent: str, message: str) -> str:
        return self.git("commit-tree", tree, "-p", parent, "-m", message).decode().strip()

    def set_refs(self, base: str, tip: str, *, head: bool = False) -> None:
        """Keep both commits from being pruned; with `head`, detach HEAD at the tip as `git checkout --detach` does.

        Raises LocalEdits if another git holds HEAD.
        """
        self._set_own_refs(base, tip)
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

    def _set_own_refs(self, base: str, tip: str) -> None:
        """Write our refs as git does, by lock and rename. Only patchctl writes them, and they have no reflog."""
        store = common_folder(self.git_dir)
        try:
            if (store / "reftable").is_dir():
                raise FileExistsError
            for name, commit in ((_BASE_REF, base), (_TIP_REF, tip)):
                file = store / name
                if not (file.is_file() and file.read_bytes() == commit.encode() + b"\n"):
                    place_new(file, commit.encode() + b"\n")
        except FileExistsError:
            self.git("update-ref", "--stdin", stdin=f"update {_BASE_REF} {base}\nupdate {_TIP_REF} {tip}\n".encode())

    def drop_refs(self) -> None:
        """Delete our refs and the empty folder that git leaves.

        Raises LocalEdits if another git holds the packed refs and ours are among them.
        """
        store = object_store(self.git_dir).parent
        if (store / "reftable").is_dir():
            if self.git("for-each-ref", "refs/patchctl/"):
                self.git("update-ref", "--stdin", stdin=f"delete {_BASE_REF}\ndelete {_TIP_REF}\n".encode())
            return
        if holds_packed(store):  # not by git: the lock of a killed git could not be told from another's
            file, own = store / "packed-refs", store / f"packed-refs{OWN}"
            ours = tuple(f" {ref}\n".encode() for ref in (_BASE_REF, _TIP_REF))
            own.unlink(missing_ok=True)
            own.write_bytes(b"".join(r for r in file.read_bytes().splitlines(keepends=True) if not r.endswith(ours)))
            put_in_place(own, file)
        for ref in (_BASE_REF, _TIP_REF):  # no lock: only patchctl writes them
            (store / ref).unlink(missing_ok=True)
        try:
            (store / "refs" / "patchctl").rmdir()
        except OSError:  # the refs were packed, or someone else has refs there
            pass

    def has(self, oid: str) -> bool:
        """Whether this repository has an object."""
        if holds(self.git_dir, oid):
            return True
        try:
            self.git("cat-file", "-e", oid)
        except GitFailed as failure:
            if failure.status != 1:  # git could not tell
                raise
            return False
        return True


def drop_own_index(own: Path) -> None:
    """Remove an index that only patchctl uses, and the lock that a killed git left."""
    for file in (own, own.with_name(f"{own.name}.lock")):
        file.unlink(missing_ok=True)


def base_ref(git_dir: Path, which: str = "base") -> str | None:
    """Return the commit of our ref `base` or `tip`, read from files, since git may fail on this git directory."""
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
    """Whether packed-refs has our refs."""
    file = store / "packed-refs"
    return file.is_file() and b" refs/patchctl/" in file.read_bytes()


def create_git_dir(git_dir: Path, exclude: Iterable[str], *, file_modes: bool = True) -> None:
    """Create an empty git directory without the user's templates or settings."""
    git_dir.parent.mkdir(parents=True, exist_ok=True)
    run_git(["init", "-q", "--bare", "--template=", str(git_dir)])
    for key in ("core.bare", "core.autocrlf", *(() if file_modes else ("core.fileMode",))):
        run_git(["config", "--file", str(git_dir / "config"), key, "false"])
    info = git_dir / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text(ATTRIBUTES, encoding="ascii")
    (info / "exclude").write_text("".join(f"/{path}\n" for path in exclude), encoding="utf-8")


def add_exclude(git_dir: Path, paths: Iterable[str]) -> None:
    """Add these paths to info/exclude."""
    file = git_dir / "info" / "exclude"
    have = file.read_text(encoding="utf-8") if file.exists() else ""
    missing = [f"/{p}\n" for p in paths if f"/{p}\n" not in have]
    if missing:
        replace_file(file, (have + "".join(missing)).encode())


def import_base(git_dir: Path, source: Path, *, anew: bool = False) -> None:
    """Copy every object of a cached base, and its shallow boundary, into `git_dir`. Raises SourceMismatch."""
    for pack in (source / "objects" / "pack").glob("*.pack"):
        bring_pack(pack, git_dir / "objects" / "pack", anew=anew)
    boundary = source / "shallow"
    if boundary.exists():
        own = git_dir / "shallow"
        lines = set(own.read_text(encoding="ascii").split()) if own.exists() else set()
        merged = sorted(lines | set(boundary.read_text(encoding="ascii").split()))
        replace_file(own, "".join(f"{line}\n" for line in merged).encode())


def find_git_dir(folder: Path) -> Path | None:
    """Return the git directory of a checkout at exactly `folder`, or None. Never looks up (wine-staging#7)."""
    dot = folder / ".git"
    if dot.is_dir():
        return dot
    if dot.is_file():  # a worktree or a submodule: one line `gitdir: PATH`
        text = dot.read_text(encoding="utf-8", errors="replace").strip()
        if text.startswith("gitdir: "):
            target = Path(os.path.normpath(folder / text[len("gitdir: ") :]))
            return target if target.is_dir() else None
    return None


def enclosing(folder: Path) -> WorkTree | None:
    """Return the checkout that `folder` is in, which may be its own."""
    folder = folder.absolute()
    for top in (folder, *folder.parents):
        if (top / ".git").exists():
            git_dir = find_git_dir(top)
            return WorkTree(git_dir, top) if git_dir else None
    return None


def object_store(git_dir: Path) -> Path:
    """Return the object folder of a git directory; a linked worktree shares its main repository's."""
    return common_folder(git_dir) / "objects"
