"""Where `patchctl repair` keeps what it takes out of the way: a new folder in the workspace, in which nothing is overwritten."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from patchctl.atomic import replace_file


class Aside:
    """`repair-N` in the workspace, N the first that is free; made when the first thing is put there. `kept` names each."""

    def __init__(self, workspace: Path) -> None:
        numbers = (n for n in range(1, 1_000_000) if not os.path.lexists(workspace / f"repair-{n}"))
        self.folder = workspace / f"repair-{next(numbers)}"
        self.kept: list[Path] = []

    def take(self, place: Path, *name: str) -> None:
        """Move a file, a link, a folder or whatever is at `place` to this name below the folder."""
        target = self._free(name)
        try:
            os.rename(place, target)
        except OSError:  # another file system: a copy first, so that a kill leaves it in both
            unfinished = target.with_name(f"{target.name}.unfinished")
            if place.is_dir() and not place.is_symlink():
                shutil.copytree(place, unfinished, symlinks=True, dirs_exist_ok=True)
                unfinished.rename(target)
                shutil.rmtree(place)
            else:
                shutil.copy2(place, unfinished, follow_symlinks=False)
                unfinished.rename(target)
                place.unlink()

    def copy(self, place: Path, *name: str) -> None:
        """Keep a copy of a file."""
        shutil.copy2(place, self._free(name), follow_symlinks=False)

    def write(self, data: bytes, *name: str) -> None:
        """Keep what is in no file."""
        replace_file(self._free(name), data)

    def _free(self, name: tuple[str, ...]) -> Path:
        wanted = self.folder.joinpath(*name)
        target, number = wanted, 1
        wanted.parent.mkdir(parents=True, exist_ok=True)
        while os.path.lexists(target):
            number += 1
            target = wanted.with_name(f"{wanted.name}.{number}")
        self.kept.append(target)
        return target
