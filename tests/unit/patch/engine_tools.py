"""What the tests of the engine share: git in an empty environment, small repositories, mails, and a build in one call."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchctl.git.catfile import ObjectReader
from patchctl.patch.parse import parse_patch
from patchctl.stack.build import Built, StackBuilder
from patchctl.stack.patches import StackPatch

GIT_ENV = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_COMMITTER_NAME": "patchctl",
    "GIT_COMMITTER_EMAIL": "patchctl@localhost",
    "GIT_AUTHOR_NAME": "A U Thor",
    "GIT_AUTHOR_EMAIL": "author@example.com",
    "LC_ALL": "C",
}
HEAD = b"From: A U Thor <author@example.com>\nDate: Sat, 21 Nov 2026 00:00:00 +0000\nSubject: [PATCH] change\n\nWhy.\n---\n"

Tree = Mapping[bytes, tuple[int, bytes]]
"""Path to mode and content."""


def run(args: Sequence[str | bytes], *, cwd: Path | None = None, stdin: bytes = b"", **env: str) -> tuple[int, bytes]:
    """Run git and return its status and what it wrote to both streams."""
    done = subprocess.run(
        [b"git", *(os.fsencode(a) for a in args)],
        cwd=cwd,
        input=stdin,
        env=GIT_ENV | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout


def git(*args: str | bytes, cwd: Path, stdin: bytes = b"", **env: str) -> bytes:
    """Run git, which must succeed, and return its standard output."""
    done = subprocess.run(
        [b"git", *(os.fsencode(a) for a in args)],
        cwd=cwd,
        input=stdin,
        env=GIT_ENV | env,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout


@dataclass(frozen=True)
class CommitText:
    """What a commit says about itself. `author` is the whole line as git keeps it, `message` its bytes."""

    author: bytes = b"A U Thor <author@example.com> 1795219200 +0000"
    message: bytes = b"change\n"


class Repo:
    """A repository without a work tree's past; commits are made with `git fast-import`, whatever their trees hold."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path
        git("init", "-q", "-b", "main", ".", cwd=path)
        git("config", "core.protectNTFS", "false", cwd=path)

    @property
    def dir(self) -> Path:
        return self.path / ".git"

    def git(self, *args: str | bytes, stdin: bytes = b"", **env: str) -> bytes:
        return git(*args, cwd=self.path, stdin=stdin, **env)

    def history(self, trees: Sequence[Tree], texts: Sequence[CommitText] | None = None) -> list[str]:
        """One commit a tree, each on the one before it; returns their ids."""
        texts = texts or [CommitText()] * len(trees)
        lines: list[bytes] = []
        for tree, text in zip(trees, texts, strict=True):
            start = b"reset refs/heads/made\n" if not lines else b""
            head = b"commit refs/heads/made\nauthor %s\ncommitter c <c@example.com> 1795219200 +0000\ndata %d\n%s\n"
            lines.append(start + head % (text.author, len(text.message), text.message) + b"deleteall\n")
            for path, (mode, data) in tree.items():
                lines.append(b"M %o inline %s\ndata %d\n%s\n" % (mode, _quoted(path), len(data), data))
        self.git("fast-import", "--quiet", "--force", "--date-format=raw-permissive", stdin=b"".join(lines))
        listed = self.git("rev-list", "--reverse", f"-n{len(trees)}", "refs/heads/made")
        return listed.decode().split()

    def tree(self, commit: str) -> str:
        return self.git("rev-parse", f"{commit}^{{tree}}").decode().strip()

    def diff(self, old: str, new: str, *options: str) -> bytes:
        """The change between two commits as `git format-patch --full-index --binary` would have it."""
        return self.git("diff-tree", "-p", "-r", "--full-index", "--binary", *options, old, new)

    def apply_cached(self, commit: str, diff: bytes) -> tuple[str | None, bytes]:
        """What `git apply --cached` makes of a commit's tree: the tree's id or None, and what it said."""
        index = str(self.dir / "index-for-apply")
        self.git("read-tree", commit, GIT_INDEX_FILE=index)
        status, said = run(["apply", "--cached", "-v", "-"], cwd=self.path, stdin=diff, GIT_INDEX_FILE=index)
        if status != 0:
            return None, said
        return self.git("write-tree", GIT_INDEX_FILE=index).decode().strip(), said

    def am(self, commit: str, patches: Sequence[Path]) -> list[str]:
        """The commits that `git am` makes of these files on `commit`, with patchctl's committer."""
        self.git("checkout", "-q", "-f", "--detach", commit)
        self.git("clean", "-fdxq")
        options = ["--keep-cr", "--committer-date-is-author-date", "--no-gpg-sign"]
        status, said = run(["am", "-q", *options, "--", *map(str, patches)], cwd=self.path)
        if status != 0:
            run(["am", "--abort"], cwd=self.path)
            raise AssertionError(said.decode("utf-8", "replace"))
        return self.git("rev-list", "--reverse", f"{commit}..HEAD").decode().split()


def _quoted(path: bytes) -> bytes:
    return b'"' + b"".join(b"\\%03o" % c if c < 32 or c in b'"\\' or c > 126 else bytes([c]) for c in path) + b'"'


def stack_patch(data: bytes, name: str = "0001-feature-x.patch") -> StackPatch:
    """A patch as the stack function takes it, without the rules for a distribution's own patches."""
    return StackPatch(Path(name), name, data, parse_patch(data, name), {})


def build(repo: Path, commit: str, patches: Sequence[bytes], left_out: Sequence[int] = ()) -> Built:
    """The stack function on these patches' bytes; `left_out` are positions."""
    parsed = [stack_patch(data, f"{i + 1:04}-feature-p{i}.patch") for i, data in enumerate(patches)]
    with ObjectReader(repo) as reader:
        builder = StackBuilder(reader, commit, reader_tree(reader, commit))
        return builder.build(parsed, [parsed[i] for i in left_out])


def reader_tree(reader: ObjectReader, commit: str) -> str:
    return reader.read(commit)[1][5:45].decode()


def stored(repo: Path) -> set[str]:
    """Every file below a repository's object store."""
    return {str(p.relative_to(repo)) for p in (repo / "objects").rglob("*") if p.is_file()}
