"""A small zoo to try what a user may have in a tree, and an exact account of it before and after a run.

`zoo` is one upstream with every shape of change: patched and unpatched files, new ones, a deletion, a mode, a file that
becomes a folder and a folder that becomes a file; two stacks of it on two revisions, and the profiles full, plain and next.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from distribution import GIT_ENV, Made, Patch, Upstream, git, make_distribution, write_files

from patchctl.__main__ import run

CORE = "".join(f"CORE_{n} = {n}\n" for n in range(12))
FIXED = CORE.replace("CORE_2 = 2", "CORE_2 = 22")
POLITE = FIXED.replace("CORE_9 = 9", "CORE_9 = 99")
ZOO = Upstream(
    "zoo",
    "v1",
    {
        "README.md": "zoo\n",
        "zoo/__init__.py": "",
        "zoo/core.py": CORE,
        "zoo/plain.py": "PLAIN = 1\n",
        "zoo/deep/a.py": "A = 1\n",
        "zoo/deep/b.py": "B = 1\n",
        "zoo/gone.py": "GONE = 1\n",
        "tools/run.sh": "#!/bin/sh\n",
        "bag/one.txt": "1\n",
        "box": "a box\n",
        ".gitignore": "*.log\nignored/\nzoo/later.py\n",
    },
    (
        Patch("fix", {"zoo/core.py": FIXED}, "core: count right"),
        Patch(
            "polite",
            {"zoo/core.py": POLITE, "zoo/gone.py": None},
            "core: be polite",
            carries={"zoo/new.py": "NEW = 1\n"},
        ),
        Patch("loud", {"box": None, "bag/one.txt": None}, "box: make room"),
        Patch("shapes", {"box/one.txt": "1\n", "bag": "a bag\n"}, "box: a folder; bag: a file", requires="loud"),
    ),
)


def make_zoo(folder: Path) -> Made:
    """The distribution, locked, with a second revision and a stack for it."""
    made = make_distribution(folder, (ZOO,))
    origin, root = made.origins / "zoo", made.root
    write_files(origin, {"zoo/plain.py": "PLAIN = 2\n", "zoo/later.py": "LATER = 1\n"})
    git(origin, "add", "--all", "--force")
    git(origin, "commit", "--quiet", "-m", "the next pin")
    commit, tree = git(origin, "rev-parse", "HEAD", "HEAD^{tree}").split()
    patch = (root / "patches/zoo/v1/fix/0001-bugfix-fix.patch").read_text()
    stack = (root / "manifests/stacks/zoo/v1.yaml").read_text().partition("pin:")[0].replace("name: v1", "name: v2")
    stack += f'pin:\n  commit: "{commit}"\n  tree: "{tree}"\npatches:\n  - 0001-bugfix-fix.patch\n'
    following = (
        (root / "manifests/profiles/full.yaml").read_text().replace("full", "next").replace("zoo: v1", "zoo: v2")
    )
    plain = (root / "manifests/profiles/plain.yaml").read_text().replace("[polite, loud]", "[polite, loud, shapes]")
    write_files(
        root,
        {
            "patches/zoo/v2/fix/0001-bugfix-fix.patch": patch,
            "manifests/stacks/zoo/v2.yaml": stack,
            "manifests/profiles/next.yaml": following,
            "manifests/profiles/plain.yaml": plain,
        },
    )
    made.good("lock")
    return made


@dataclass(frozen=True)
class Ended:
    """How a run in this process ended, and all that it said."""

    code: int
    said: str

    @property
    def branches(self) -> list[tuple[str, str | None]]:
        """The branches that it names, with the repository where it names one."""
        return re.findall(r"(patchctl-stash-\d+)(?: of (\S+))?", self.said)


def patchctl(made: Made, *args: str) -> Ended:
    """`made.patchctl` in this process: a matrix of hundreds of runs has no time for as many interpreters."""
    said = io.StringIO()
    before = Path.cwd()
    os.chdir(made.root)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = run([f"--root={made.root}", f"--cache={made.cache}", *args])
    finally:
        os.chdir(before)
    return Ended(code, said.getvalue())


EMPTY = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
Entry = tuple[str, int, bytes]  # kind, permissions, content or where a link points


@dataclass(frozen=True)
class Account:
    """Everything in a tree that may be its user's."""

    files: Mapping[str, Entry]
    own: Mapping[str, Entry]  # of the git directory: configuration, hooks, notes of what is under way
    index: Mapping[str, str]  # path and stage: mode and blob
    flags: Mapping[str, str]
    refs: Mapping[str, str]
    stashes: str
    head: str
    branch: str | None
    folders: frozenset[str] = field(default=frozenset())


# What git and a run of ours may write there without anything of the user's being touched.
_NOT_THE_USERS = re.compile(
    r"(objects|logs|refs|index|packed-refs|HEAD|ORIG_HEAD|shallow|info/attributes|info/exclude)(/|$)"
    r"|refs/patchctl|sharedindex|worktrees/[^/]*/(index|logs|HEAD|ORIG_HEAD)"
)


def account(tree: Path) -> Account:
    """Take the account of a tree whose repository is `.git` in it, or of a plain folder."""
    files, own = {}, {}
    folders = set()
    for path, entry in entries(tree):
        if path.startswith(".git/"):
            name = path.removeprefix(".git/")
            if not _NOT_THE_USERS.match(name) and entry[0] != "folder":
                own[name] = entry
        elif entry[0] == "folder":
            folders.add(path)
        elif path != ".git":
            files[path] = entry
    if not (tree / ".git").exists():
        return Account(files, own, {}, {}, {}, "", "", None, frozenset(folders))
    refs = dict(
        line.split(" ")[::-1] for line in ask(tree, "for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    )
    refs = {name: oid for name, oid in refs.items() if not name.startswith("refs/patchctl/")}
    index, flags = {}, {}
    for line in ask(tree, "ls-files", "-v", "-s", "-z").split("\0"):
        if line:
            about, _, path = line.partition("\t")
            tag, mode, blob, stage = about.split()
            index[f"{path}:{stage}"] = f"{mode} {blob}"
            if tag not in "HM":
                flags[path] = tag
    stashes = ask(tree, "reflog", "show", "--format=%H %gs", "refs/stash") if "refs/stash" in refs else ""
    head_file = (tree / ".git" / "HEAD").read_text().strip()
    branch = head_file.removeprefix("ref: ") if head_file.startswith("ref: ") else None
    head = ask(tree, "rev-parse", "HEAD").strip()
    return Account(files, own, index, flags, refs, stashes, head, branch, frozenset(folders))


def ask(tree: Path, *args: str) -> str:
    """A question to the user's git that runs none of what a test planted in its configuration."""
    quiet = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.sparseCheckout=false")
    options = [word for setting in quiet for word in ("-c", setting)]
    env = {**GIT_ENV, "GIT_OPTIONAL_LOCKS": "0"}
    with readable(tree / ".git") as git_dir:
        line = ["git", *options, f"--git-dir={git_dir}", f"--work-tree={tree}", *args]
        return subprocess.run(line, env=env, capture_output=True, check=True, cwd=tree).stdout.decode(
            "utf-8", "surrogateescape"
        )


@contextlib.contextmanager
def readable(git_dir: Path) -> Iterator[Path]:
    """A git directory that git can read: a copy, where its configuration is broken."""
    if b"[this is no" not in (git_dir / "config").read_bytes():
        yield git_dir
        return
    with tempfile.TemporaryDirectory() as top:
        copy = Path(shutil.copytree(git_dir, Path(top) / "git", symlinks=True))
        (copy / "config").write_text("[core]\n\trepositoryFormatVersion = 0\n\tbare = false\n")
        yield copy


def entries(top: Path) -> Iterator[tuple[str, Entry]]:
    """Every file, folder and whatever else there is below a folder."""
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            yield (
                os.path.relpath(path, top),
                (_kind(status.st_mode), stat.S_IMODE(status.st_mode), _content(path, status)),
            )


def _kind(mode: int) -> str:
    names = ((stat.S_ISREG, "file"), (stat.S_ISLNK, "link"), (stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "fifo"))
    return next((name for test, name in names if test(mode)), "special")


def _content(path: str, status: os.stat_result) -> bytes:
    if stat.S_ISREG(status.st_mode):
        return Path(path).read_bytes()
    return os.fsencode(os.readlink(path)) if stat.S_ISLNK(status.st_mode) else b""


def lost(before: Account, planted: Account, after: Account, tree: Path, ended: Ended) -> list[str]:
    """What the user had (`planted`, where the tree was as `before`) that is neither where it was nor on a branch that the
    output names. Empty when everything was kept."""
    branches = [Branch(Path(place) if place else tree / ".git", name) for name, place in ended.branches]
    gone = []
    for path in sorted(before.files.keys() | planted.files.keys()):
        had, was, has = planted.files.get(path), before.files.get(path), after.files.get(path)
        if had in (was, has) or any(b.has(path, had) for b in branches):
            continue
        if had and was and has and (had[0], had[2]) == (was[0], was[2]) and had[1] == has[1]:
            continue  # only its permissions were the user's, and they still are
        gone.append(f"file {path}")
    staged = {k: v for k, v in planted.index.items() if before.index.get(k) != v}
    for key, entry in staged.items():
        path, _, stage = key.rpartition(":")
        if entry.endswith(EMPTY) and planted.files.get(path, ("", 0, b""))[2]:
            continue  # an intention to add: what it is about is a file
        if after.index.get(key) != entry and not (stage == "0" and any(b.had_staged(path, entry) for b in branches)):
            gone.append(f"staged {key}")
    for key in before.index.keys() - planted.index.keys():
        path = key.rpartition(":")[0]
        if key in after.index and not any(b.had_staged(path, None) for b in branches):
            gone.append(f"staged deletion of {key}")
    gone += [
        f"flag of {p}" for p, tag in planted.flags.items() if f"{p}:0" in after.index and after.flags.get(p) != tag
    ]
    gone += [f"reference {name}" for name, oid in planted.refs.items() if after.refs.get(name) != oid]
    gone += [f".git/{name}" for name, entry in planted.own.items() if after.own.get(name) != entry]
    gone += ["stashes"] if planted.stashes != after.stashes else []
    if planted.head != before.head and planted.head not in (after.head, *after.refs.values()):
        gone += [] if any(b.holds(planted.head) for b in branches) else ["commits on top"]
    return gone


@dataclass(frozen=True)
class Branch:
    """A branch that a run made for what it found."""

    git_dir: Path
    name: str

    def has(self, path: str, entry: Entry | None) -> bool:
        """Whether its last commit has this file; None: whether it has none there."""
        return self._holds("", path, entry)

    def had_staged(self, path: str, entry: str | None) -> bool:
        """Whether its last commit, or the one below it, has this blob with this mode."""
        return any(self._entry(commit, path) == entry for commit in ("", "~1"))

    def holds(self, commit: str) -> bool:
        return self._git("merge-base", "--is-ancestor", commit, f"refs/heads/{self.name}").returncode == 0

    def _holds(self, commit: str, path: str, entry: Entry | None) -> bool:
        found = self._entry(commit, path)
        if entry is None or found is None:
            return entry is None and found is None
        mode = {"link": "120000"}.get(entry[0], "100755" if entry[1] & 0o100 else "100644")
        return found.split()[0] == mode and self._git("cat-file", "blob", found.split()[1]).stdout == entry[2]

    def _entry(self, commit: str, path: str) -> str | None:
        out = self._git("ls-tree", "-z", f"refs/heads/{self.name}{commit}", "--", path).stdout.decode()
        about = out.partition("\t")[0].split()
        return f"{about[0]} {about[2]}" if about and about[1] != "tree" else None

    def _git(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        with readable(self.git_dir) as git_dir:
            line = ["git", "-c", "core.fsmonitor=false", f"--git-dir={git_dir}", *args]
            return subprocess.run(line, env=GIT_ENV, capture_output=True, check=False)
