"""Images and containers by the name that docker or podman has for them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from patchctl import process_group
from patchctl.errors import WrongUse
from patchctl.image.image_archive import ImageFile

_ENGINES = ("docker", "podman")


def save(name: str, to: Path) -> ImageFile:
    """Write the files of a container, running or not, else an image, as the first engine that knows `name` has it.

    Raises WrongUse if none knows it, or the engine fails.
    """
    said = []
    for engine in filter(shutil.which, _ENGINES):
        found = _ask(engine, "container", "inspect", "--format", "{{json .Config}}", "--", name)
        if found.returncode == 0:
            _write(engine, ["export", "--output", str(to), "--", name])
            return ImageFile(to, name, json.loads(found.stdout))
        found = _ask(engine, "image", "inspect", "--format", "{{.Id}}", "--", name)
        if found.returncode == 0:
            _write(engine, ["save", "--output", str(to), "--", name])
            return ImageFile(to, name)
        said.append(f"{engine}: {_last_line(found)}")
    what = f"no such file, and no image or container that {' or '.join(_ENGINES)} knows"
    why = f" ({'; '.join(said)})" if said else ""
    raise WrongUse(what + why, where=name, hint="buildah has its own: `buildah push IMAGE oci-archive:image.tar`")


def _ask(engine: str, *args: str) -> subprocess.CompletedProcess[str]:
    return process_group.run([engine, *args], stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True)


def _write(engine: str, args: list[str]) -> None:
    done = _ask(engine, *args)
    if done.returncode != 0:
        raise WrongUse(f"{engine} {args[0]} ended with {done.returncode}: {_last_line(done)}", where=args[-1])


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return ([line for line in done.stderr.splitlines() if line.strip()] or ["no word"])[-1].strip()
