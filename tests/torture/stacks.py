"""A small distribution whose stacks do to a tree all that a patch can do: renames, a file that becomes a folder and a folder
that becomes a file, modes, binary files, deletions; with links in the base. Made with git, the same on every machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from distribution import Made, Patch, Upstream, _make_sdist, _write_manifests, git, patch_text, write_files

_CORE = "\n".join(f"VALUE_{n} = {n}" for n in range(30)) + "\n"
_GUIDE = "\n".join(f"line {n} of the guide" for n in range(20)) + "\n"
_TABLE = bytes((n * 37 + n // 7) % 256 for n in range(3000))
_TICK = '"""Tells the time."""\n\n\ndef tick(count):\n    return count + 1\n'
_BUILD = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'


def _base(repo: Path) -> None:
    write_files(
        repo,
        {
            ".gitignore": "*.log\n",
            "pyproject.toml": f'{_BUILD}[project]\nname = "shapes"\nversion = "1.0"\n[tool.setuptools]\npackages = ["shapes"]\n',
            "shapes/__init__.py": "",
            "shapes/core.py": _CORE,
            "shapes/plain": "a file that becomes a folder\n",
            "shapes/box/a.py": "A = 1\n",
            "shapes/box/deep/b.py": "B = 1\n",
            "shapes/dead.py": "DEAD = True\n",
            "tools/stop.sh": "#!/bin/sh\necho stop\n",
            "tools/start": "#!/bin/sh\necho start\n",
            "docs/guide.txt": _GUIDE,
        },
    )
    (repo / "data").mkdir()
    (repo / "data" / "table.bin").write_bytes(_TABLE)
    (repo / "data" / "old.bin").write_bytes(_TABLE[::-1])
    (repo / "shapes" / "link.py").symlink_to("core.py")
    (repo / "current").symlink_to("data")


def _typo(repo: Path) -> None:
    _edit(repo / "shapes/core.py", "VALUE_3 = 3\n", "VALUE_3 = 33\n")


def _moves(repo: Path) -> None:
    (repo / "docs/guide.txt").rename(repo / "docs/manual.txt")
    _edit(repo / "docs/manual.txt", "line 5 of", "line five of")
    (repo / "shapes/dead.py").unlink()


def _turns(repo: Path) -> None:
    (repo / "shapes/plain").unlink()
    write_files(repo, {"shapes/plain/in.py": "IN = 1\n", "shapes/plain/deep/er.py": "ER = 1\n"})
    shutil.rmtree(repo / "shapes/box")
    (repo / "shapes/box").write_text("a folder that became a file\n")


def _bits(repo: Path) -> None:
    (repo / "tools/start").chmod(0o755)
    (repo / "tools/stop.sh").chmod(0o644)
    (repo / "data/table.bin").write_bytes(_TABLE[:1000] + bytes(50) + _TABLE[1000:])
    (repo / "data/old.bin").unlink()
    (repo / "data/new.bin").write_bytes(_TABLE[500:900])


def _more(repo: Path) -> None:
    _edit(repo / "shapes/core.py", "VALUE_20 = 20\n", "VALUE_20 = 20\nfrom shapes.more import MORE\n")


SHAPES = Upstream(
    "shapes",
    "v1",
    {},
    (
        Patch("typo", {}, "core: give the third value its right size"),
        Patch("moves", {}, "docs: call the guide a manual", switch="env SHAPES_MOVES=1"),
        Patch("polite", {}, "shapes: turn a file into a folder and a folder into a file", switch="env SHAPES_TURNS=1"),
        Patch("loud", {}, "tools: run what starts, and another table", switch="env SHAPES_BITS=1"),
        Patch("more", {}, "core: take more", switch="env SHAPES_MORE=1", carries={"shapes/more.py": "MORE = 1\n"}),
    ),
)
_STEPS: tuple[Callable[[Path], None], ...] = (_typo, _moves, _turns, _bits, _more)
CLOCK = Upstream(
    "clock",
    "v2",
    {
        "pyproject.toml": f'{_BUILD}[project]\nname = "clock"\nversion = "1.0"\n',
        "clock/__init__.py": "",
        "clock/tick.py": _TICK,
    },
    (
        Patch("step", {}, "tick: take the size of a step", switch="config clock.step=2"),
        Patch("chime", {}, "tick: chime", switch="env CLOCK_CHIME=1", carries={"clock/chime.py": "CHIME = 1\n"}),
    ),
    sdist=("pyproject.toml", "clock/__init__.py", "clock/tick.py"),
)


def _step(repo: Path) -> None:
    _edit(repo / "clock/tick.py", "tick(count):\n    return count + 1", "tick(count, step=1):\n    return count + step")


def _chime(repo: Path) -> None:
    _edit(repo / "clock/tick.py", '"""Tells the time."""\n', '"""Tells the time, and chimes."""\n')


def make(folder: Path) -> Made:
    """The distribution, locked, in `folder`; its cache is filled by that. Profile `plain` leaves three patches out."""
    made = Made(folder / "distribution", folder / "origins", folder / "cache")
    made.index.mkdir(parents=True)
    clock = lambda repo: write_files(repo, CLOCK.files)  # noqa: E731
    pins = {"shapes": _make(made, SHAPES, _base, _STEPS), "clock": _make(made, CLOCK, clock, (_step, _chime))}
    _write_manifests(made, (SHAPES, CLOCK), pins)
    made.edit("manifests/profiles/plain.yaml", "without: [polite, loud]", "without: [polite, loud, chime]")
    write_files(made.root, {"LICENSE": "do what you like\n", "scripts/train.sh": "#!/bin/sh\necho train\n"})
    made.good("lock")
    return made


def _make(
    made: Made, upstream: Upstream, base: Callable[[Path], None], steps: tuple[Callable[[Path], None], ...]
) -> list[str]:
    """The repository and the patches; returns the pin's lines of the manifest."""
    repo = made.origins / upstream.name
    repo.mkdir(parents=True)
    git(repo, "init", "--quiet", "--initial-branch=main")
    base(repo)
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "-m", "the pin")
    pin = git(repo, "rev-parse", "HEAD", "HEAD^{tree}").split()
    folder = made.root / "patches" / upstream.name / upstream.stack
    for number, (patch, step) in enumerate(zip(upstream.patches, steps, strict=True), 1):
        step(repo)
        git(repo, "add", "--all")
        diff = git(repo, "diff", "--cached", "--binary", "--full-index", "--find-renames", "--no-color", "-U3")
        own = folder / patch.feature
        own.mkdir(parents=True, exist_ok=True)
        (own / patch.file(number)).write_bytes(patch_text(patch, diff).encode())
        write_files(own / "files", patch.carries)
        write_files(repo, patch.carries)
        git(repo, "add", "--all")
        git(repo, "commit", "--quiet", "-m", patch.feature)
    git(repo, "reset", "--quiet", "--hard", pin[0])
    return [f'  commit: "{pin[0]}"', f'  tree: "{pin[1]}"', *_make_sdist(made, upstream)]


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
    file.write_text(text.replace(old, new))
