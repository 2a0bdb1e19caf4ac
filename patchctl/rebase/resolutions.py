"""What resolves a conflict without a person: an earlier resolution, or upstream's own script.

Resolutions are stored at once and outside the work tree, so that they survive an abort and a removed tree:

edit/.resolutions/<upstream>/<key>.json   a whole patch as resolved, for the same patch on the same tree
edit/.resolutions/<upstream>/rr-cache/    git's rerere: single conflicts, wherever they recur
edit/.resolutions/<upstream>/aside-*.diff half-done work that an abort or a skip found

Files that upstream tracks but generates with a script of its own are regenerated, not merged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.git.run import GitFailed, git_environment
from patchctl.git.worktree import WorkTree
from patchctl.manifest.types import Regenerated, Upstream
from patchctl.process_group import ask
from patchctl.rebase.cherry_pick import at_work
from patchctl.terminal.text import one_line


class Resolutions:
    """The resolutions of one upstream, in the distribution's edit/ folder."""

    def __init__(self, root: Path, upstream: str) -> None:
        self.folder = root / "edit" / ".resolutions" / upstream

    def link(self, git_dir: Path) -> None:
        """Keep git's rr-cache here too. MERGE_RR must not name entries that were deleted since: git would die of a signal."""
        cache, noted, there = self.folder / "rr-cache", git_dir / "MERGE_RR", git_dir / "rr-cache"
        cache.mkdir(parents=True, exist_ok=True)
        if there.is_symlink() and os.readlink(there) != str(cache):  # the tree is a copy, as of a CI job's artifact
            there.unlink()
        if not there.is_symlink():
            os.symlink(cache, there)
        names = [entry.partition(b"\t")[0].partition(b".")[0] for entry in _bytes_of(noted).split(b"\0") if entry]
        if not all((cache / os.fsdecode(name)).is_dir() for name in names):
            noted.unlink()

    def keep(self, work: WorkTree, picked: str, head: str, commit: str) -> None:
        """Store what `picked` became on `head`."""
        diff = work.git("diff-tree", "-p", "--binary", "--full-index", "--no-renames", head, commit)
        message = work.git("cat-file", "commit", commit).partition(b"\n\n")[2]
        data = {"tree": _tree(work, commit), "message": _text(message), "diff": _text(diff)}
        replace_file(self._file(work, picked, head), json.dumps(data).encode())

    def replay(self, work: WorkTree, picked: str, head: str) -> str | None:
        """Apply and stage the stored resolution on a clean tree at `head`; returns its message, or None if there is none to use."""
        try:
            data = json.loads(self._file(work, picked, head).read_bytes())
            tree, message, diff = data["tree"], _bytes(data["message"]), _bytes(data["diff"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        try:
            if diff:
                work.git("apply", "--index", "--binary", "--whitespace=nowarn", "-", stdin=diff)
        except GitFailed:
            return None
        if work.git("write-tree").decode().strip() != tree:
            work.git("reset", "--hard", "--quiet", head)
            return None
        return message.decode("utf-8", "replace")

    def put_aside(self, work: WorkTree, head: str, paths: list[bytes]) -> Path | None:
        """Store these files as a diff to `head`; returns its path, or None if they are as in `head`."""
        tree = work.snapshot(head, paths)
        diff = work.git("diff-tree", "-p", "--binary", "--full-index", "--no-renames", head, tree)
        if not diff:
            return None
        file = self.folder / f"aside-{hashlib.sha256(diff).hexdigest()[:12]}.diff"
        replace_file(file, diff)
        return file

    def _file(self, work: WorkTree, picked: str, head: str) -> Path:
        """Keyed by trees: the commits of a release in between have another date each time."""
        parts = [_tree(work, f"{picked}^"), _tree(work, picked), _tree(work, head)]
        return self.folder / f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:40]}.json"


def _bytes_of(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _tree(work: WorkTree, commit: str) -> str:
    return work.git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


VARIABLE = "PATCHCTL_TORCH_PYTHON"
_SECONDS = 600


class Regeneration:
    """How an upstream regenerates such files (`regenerated:`); it may have none.

    `generator` is a commit that has the script together with its folder, for trees that lack them.
    """

    def __init__(self, upstream: Upstream, python: str | None, generator: str | None) -> None:
        self._how: Regenerated | None = upstream.regenerated
        self._generator = generator
        self._python = python or os.environ.get(VARIABLE) or "python3"

    def among(self, paths: Iterable[bytes]) -> list[bytes]:
        how = self._how
        return [p for p in paths if how is not None and p.startswith(how.prefix.encode())]

    def take_head(self, work: WorkTree, paths: Iterable[bytes]) -> None:
        """Resolve conflicts in such files with upstream's side: they are about to be rewritten anyway."""
        for path in paths:
            text = os.fsdecode(path)
            try:
                work.git("--literal-pathspecs", "checkout", "--quiet", "HEAD", "--", text)
            except GitFailed:  # upstream has no such file
                work.git("--literal-pathspecs", "rm", "--quiet", "--force", "--ignore-unmatch", "--", text)

    def why_not(self, work: WorkTree) -> str | None:
        """Why they cannot be regenerated here, or None."""
        assert self._how is not None
        if self._generator is None and not (work.folder / self._how.script).is_file():
            return f"{self._how.script} is not in this source, and no repository has it at the pin before (--mirror)"
        try:
            done = ask([self._python, "-c", f"import {self._how.needs}"], 120, cwd="/")
        except (OSError, subprocess.SubprocessError) as error:
            return f"{self._python} cannot be started: {one_line(str(error))}"
        wants = f"{self._python} has no {self._how.needs}: name one that has with --python, or {VARIABLE}"
        return wants if done.returncode else None

    def run(self, work: WorkTree) -> str | None:
        """Run upstream's script in the tree and stage what it wrote; returns why it failed, else None.

        It runs twice: such scripts exit with the same error for "a file was out of date" as for a failure of their own.
        """
        assert self._how is not None
        said = ""
        with self._laid_out(work):
            for _ in range(2):
                status, said = self._once(work.folder)
        staged = work.git("ls-files", "--modified", "--others", "--exclude-standard", "-z").split(b"\0")
        written = self.among(p for p in staged if p)
        if written:
            with at_work(work):
                work.git("--literal-pathspecs", "add", "--", *map(os.fsdecode, written))
        return None if status == 0 else f"{self._how.script} ended with {status}: {said}"

    @contextlib.contextmanager
    def _laid_out(self, work: WorkTree) -> Iterator[None]:
        """The script in the tree, from the generator's commit if the tree lacks it, together with its folder, which it may call."""
        assert self._how is not None
        laid = list[Path]()
        if not (work.folder / self._how.script).is_file():
            beside = self._how.script.rpartition("/")[0] or self._how.script
            listed = work.git("ls-tree", "-r", "-z", "--full-tree", f"{self._generator}", "--", beside)
            for entry in listed.split(b"\0")[:-1]:
                what, _, name = entry.partition(b"\t")
                mode, _, blob = what.decode().split()
                path = work.folder / os.fsdecode(name)
                if mode.startswith("100") and not os.path.lexists(path):
                    replace_file(path, work.git("cat-file", "blob", blob))
                    laid.append(path)
        try:
            yield
        finally:
            for path in laid:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    os.removedirs(path.parent)

    def _once(self, folder: Path) -> tuple[int, str]:
        assert self._how is not None
        env = git_environment((("safe.directory", str(folder)),))
        own = {
            **env,
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
            "PATH": f"{Path(self._python).parent}{os.pathsep}{env.get('PATH', os.defpath)}",
        }
        try:
            done = ask(["bash", self._how.script], _SECONDS, cwd=folder, env=own)
        except (OSError, subprocess.SubprocessError) as error:
            return 1, one_line(str(error))
        return done.returncode, one_line((done.stderr.strip() or done.stdout.strip())[-400:])
