"""Files that upstream tracks but generates with a script of its own: they are regenerated, not merged."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from patchctl.git.run import GitFailed, git_environment
from patchctl.git.worktree import WorkTree
from patchctl.manifest.types import Regenerated, Upstream
from patchctl.terminal.text import one_line

VARIABLE = "PATCHCTL_TORCH_PYTHON"
_SECONDS = 600


class Regeneration:
    """How an upstream regenerates such files (`regenerated:`); it may have none."""

    def __init__(self, upstream: Upstream, python: str | None) -> None:
        self._how: Regenerated | None = upstream.regenerated
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
        if not (work.folder / self._how.script).is_file():
            return f"{self._how.script} is not in the tree"
        try:
            asked = [self._python, "-c", f"import {self._how.needs}"]
            done = subprocess.run(asked, capture_output=True, check=False, timeout=120, cwd="/")
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
        for _ in range(2):
            status, said = self._once(work.folder)
            staged = work.git("ls-files", "--modified", "--others", "--exclude-standard", "-z").split(b"\0")
            written = self.among(p for p in staged if p)
            if written:
                work.git("--literal-pathspecs", "add", "--", *map(os.fsdecode, written))
        return None if status == 0 else f"{self._how.script} ended with {status}: {said}"

    def _once(self, folder: Path) -> tuple[int, str]:
        assert self._how is not None
        with git_environment((("safe.directory", str(folder)),)) as env:
            own = {
                **env,
                "PYTHONPATH": str(folder),
                "PYTHONDONTWRITEBYTECODE": "1",
                "GIT_CEILING_DIRECTORIES": str(folder.parent),
                "PATH": f"{Path(self._python).parent}{os.pathsep}{env.get('PATH', os.defpath)}",
            }
            try:
                done = subprocess.run(
                    ["bash", self._how.script],
                    cwd=folder,
                    env=own,
                    capture_output=True,
                    text=True,
                    timeout=_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.SubprocessError) as error:
                return 1, one_line(str(error))
        return done.returncode, one_line((done.stderr.strip() or done.stdout.strip())[-400:])
