"""The runs of those who keep patches: `rebase`, `pin`, `drift`, `bisect`, `prove`."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from typing import Any

from box import Box
from distribution import git, write_files
from on_disk import Snapshot, snapshot
from scenario import Args, Scenario, Step, Way
from seccomp import GO_ON, Answer, Call

_THEIRS, _OURS, _MENDED = "VALUE_3 = 30\n", "VALUE_3 = 33\n", "VALUE_3 = 330\n"


def _beside(box: Box) -> Snapshot:
    return snapshot(box.beside)


def _distribution(box: Box) -> Snapshot:
    """All of it but what people resolved, and unfinished files, of which `healthy` tells."""
    return {p: s for p, s in snapshot(box.made.root).items() if p.split("/")[0] != "edit"}


def _untouched(box: Box) -> Any:
    """What is the user's, the distribution with it."""
    return _beside(box), _distribution(box)


def _whole(box: Box) -> dict[str, object]:
    return {f"distribution/{p}": s for p, s in _distribution(box).items()}


def _in_temporary(box: Box) -> list[str]:
    """What killed runs left in the folder for temporary files, but the settings that each git is given, and the file that
    Python's `tempfile` writes "blat" to and removes, to see whether it can write there."""
    probe = re.compile("[a-z0-9_]{8}")
    found = [
        p
        for p in box.at("tmp").iterdir()
        if not (probe.fullmatch(p.name) and p.is_file() and p.read_bytes() in (b"", b"blat"))
    ]
    return [f"left behind in the temporary folder: {p.name}" for p in found if not p.name.startswith("patchctl-git-")]


def _tidy(box: Box) -> list[str]:
    hidden = [p for p in box.made.root.rglob("*") if p.name.endswith((".new", ".tmp"))]
    return [*(f"left behind: {p}" for p in hidden), *_in_temporary(box)]


# rebase


def _next_release(box: Box) -> None:
    """Upstream goes on: a line that the first patch changes too, and a new file."""
    origin = box.made.origins / "shapes"
    core = origin / "shapes/core.py"
    core.write_text(core.read_text().replace("VALUE_3 = 3\n", _THEIRS))
    (origin / "shapes/wide.py").write_text("WIDE = 1\n")
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "-m", "the next one")
    git(origin, "tag", "v2")


def _stopped(box: Box) -> None:
    """A rebase that has stopped at its first patch."""
    _next_release(box)
    done = box.run([a.replace("BOX", str(box.folder)) for a in _REBASE])
    assert done.status == 4, done.out + done.err


def _mended(box: Box) -> None:
    """The conflict settled, and staged."""
    _stopped(box)
    _write_core(box, _MENDED)
    git(box.at("edit/shapes"), "add", "--all")


def _half_mended(box: Box) -> None:
    """The conflict settled in the file, and not staged."""
    _stopped(box)
    _write_core(box, _MENDED)


def _write_core(box: Box, line: str) -> None:
    core = box.at("edit/shapes") / "shapes/core.py"
    head, _, rest = core.read_text().partition("<<<<<<< ")
    core.write_text(head + line + rest.partition(">>>>>>> ")[2].partition("\n")[2])


def _half_written(box: Box) -> None:
    """A rebase whose end was killed as it was about to write the lock: patches and manifest are there."""
    _mended(box)

    def kill(call: Call, first: int) -> Answer:
        return Answer(kill=(-first,)) if call.changes and call.path.endswith("/locks/shapes/.v2.json.new") else GO_ON

    done = box.run([a.replace("BOX", str(box.folder)) for a in _CONTINUE], kill)
    assert done.status == -9 and any((box.made.root / "patches/shapes/v2").rglob("*.patch")), done.out + done.err


def _rebased(box: Box) -> dict[str, object]:
    """The distribution, and the work tree that is the user's: files, commits, the index, whether a rebase is under way."""
    found = _whole(box)
    tree = box.at("edit/shapes")
    if tree.is_dir():
        found |= {f"tree/{p}": s for p, s in snapshot(tree).items() if p.split("/")[0] != ".git"}
        asked = [("log", "-9", "--format=%an %T %s"), ("symbolic-ref", "HEAD"), ("status", "--porcelain")]
        found |= {args[0]: git(tree, *args) for args in asked}
        found["under way"] = (tree / ".git/patchctl-rebase.json").exists()
    return found


def _mended_somewhere(box: Box) -> Any:
    """What was resolved is in the work tree, in a patch of the distribution, or among the resolutions."""
    return _holds(box, "330"), _beside(box)


def _holds(box: Box, text: str) -> bool:
    places = [box.at("edit") / name / "shapes/core.py" for name in ("shapes", ".shapes.rebase", ".shapes.rebase-gone")]
    places += (box.made.root / "patches/shapes/v2").rglob("*.patch")
    places += (p for p in (box.made.root / "edit").rglob("*") if p.is_file())
    return any(text in p.read_text() for p in places if p.is_file())


def _whole_rebase(box: Box) -> list[str]:
    """A tree that is the user's is whole, and nothing hidden lies beside it."""
    found = _tidy(box)
    if not box.at("edit/shapes").is_dir():
        return found
    said = git(box.at("edit/shapes"), "fsck", "--full", "--strict", "--no-dangling")
    found += [f"git fsck: {said}"] if said else []
    wanted = ("shapes", "shapes.range-diff")
    return found + [f"left behind: {p}" for p in box.at("edit").iterdir() if p.name not in wanted]


# pin, drift


def _offered(box: Box) -> None:
    """Another release of each: a tag of shapes; of clock a tag and a source distribution, with a call that its patch changes."""
    _next_release(box)
    origin = box.made.origins / "clock"
    tick = origin / "clock/tick.py"
    tick.write_text("# a line more\n" + tick.read_text())
    git(origin, "commit", "--quiet", "--all", "-m", "the next one")
    git(origin, "tag", "v3.0")
    _offer(box, "3.0", {f: (origin / f).read_bytes() for f in git(origin, "ls-files").split()})


def _offer(box: Box, version: str, files: dict[str, bytes]) -> None:
    """A source distribution of clock on the index, the same bytes every time."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        told = f"Metadata-Version: 2.1\nName: clock\nVersion: {version}\n".encode()
        for name, data in sorted({**files, "PKG-INFO": told}.items()):
            info = tarfile.TarInfo(f"clock-{version}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (box.made.index / f"clock-{version}.tar.gz").write_bytes(gzip.compress(plain.getvalue(), mtime=0))


def _drifted(box: Box) -> dict[str, object]:
    """The distribution, and which source distributions were read. Verdicts are kept where the cache can be written, and no more."""
    folder = box.made.cache / "drift"
    read = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("release.json")}
    return {**_whole(box), **read}


# bisect, prove


def _with_check(box: Box) -> None:
    """A command that one of the patches breaks."""
    (box.at("check.sh")).write_text("test -d shapes/shapes/box\n")


def _tested(box: Box) -> None:
    """One feature with its tests and a mutation."""
    feature = "patches/clock/v2/step"
    write_files(
        box.made.root,
        {
            "conftest.py": _CONFTEST,
            f"{feature}/tests/test_step.py": _TESTS,
            f"{feature}/mutants/step.yaml": "file: clock/tick.py\nwhy: it asks\nreplace: count + step\nwith: count + 1\n",
        },
    )


# What docs/evidence/README.md asks of the tests of a distribution of one's own, and no more.
_CONFTEST = """
import json, pathlib, pytest
def pytest_addoption(parser):
    for name in ("--trees", "--used", "--dropped"):
        parser.addoption(name)
    parser.addoption("--stack", action="append", default=[])
    parser.addoption("--slow", action="store_true")
def pytest_configure(config):
    for name in ("on", "off", "misuse"):
        config.addinivalue_line("markers", name)
def pytest_collection_modifyitems(items):
    for item in items:
        item.user_properties += [("mark", mark.name) for mark in item.iter_markers()]
def pytest_sessionfinish(session):
    pathlib.Path(session.config.getoption("--used")).write_text("[]")
@pytest.fixture
def tick(request):
    names = {}
    exec(pathlib.Path(request.config.getoption("--trees"), "clock/clock/tick.py").read_text(), names)
    return names["tick"]
"""
_TESTS = """
import pytest
@pytest.mark.on
def test_need(tick):
    assert tick(1, 2) == 3
@pytest.mark.off
def test_rest(tick):
    assert tick(1) == 2
"""
_PIN: Args = ("pin", "clock", "v3.0")
_DRIFT: Args = ("drift", "--against", "shapes=v2", "--against", "clock=3.0", "--source", "auto")
_STATES = "3 exact, 2 moved, 2 conflict"
_BISECT: Args = ("bisect", "--profile", "full", "--", "sh", "BOX/check.sh")
_FOUND: Way = (Step(_BISECT, "end", says="broken by polite@shapes"),)
_PROVE: Args = ("prove", "step@clock")
_OF_DISTRIBUTION = ("cache", "tmp", "distribution")

_DIR = ("--dir", "BOX/edit/shapes")
_REBASE: Args = ("rebase", "shapes/v1", "--to", "v2", *_DIR)
_CONTINUE: Args = ("rebase", "--continue", *_DIR)
_ABORT: Args = ("rebase", "--abort", *_DIR)
_LIST: Args = ("list",)
_ON: Way = (Step(_REBASE, None, (2, 4)), Step(_CONTINUE, None, (4,)), Step(_LIST, "stopped"))
_BACK: Way = (Step(_ABORT, None, (0, 2)), Step(_LIST, "before"), Step(_REBASE, None, (4,)), Step(_LIST, "stopped"))
# 2: it was the end of it already, and no rebase is under way
_TO_THE_END: Way = (Step(_CONTINUE, None, (2, 20)), Step(_LIST, "done"))
_ANEW: Way = (
    Step(_ABORT, None, (0, 2)),
    Step(_LIST, "before|done"),
    Step(_REBASE, None, (2, 20)),
    Step(_LIST, "done"),
)
_GONE: Way = (Step(_ABORT, None, (0, 2)), Step(_LIST, "before"), Step(_REBASE, None, (20,)), Step(_LIST, "done"))
_REBASE_ROOTS = ("edit", "cache", "tmp", "distribution")

ALL: tuple[Scenario, ...] = (
    Scenario("rebase", "rebase, to its first stop", _next_release, _REBASE, "stopped", {"stopped": [_REBASE], "before": []},
             (_ON, _BACK), _rebased, _beside, _REBASE_ROOTS, healthy=_whole_rebase, codes=(2, 3, 7), well=(0, 4)),
    Scenario("rebase-continue", "rebase --continue, to the end", _mended, _CONTINUE, "done",
             {"done": [_CONTINUE], "before": [_ABORT]}, (_TO_THE_END, _ANEW), _rebased, _mended_somewhere, _REBASE_ROOTS,
             healthy=_whole_rebase, codes=(2, 3, 7), well=(0, 20)),
    Scenario("rebase-abort", "rebase --abort at a stop", _half_mended, _ABORT, "before", {"before": [_ABORT], "stopped": [_ABORT, _REBASE]},
             (_BACK,), _rebased, _mended_somewhere, _REBASE_ROOTS, healthy=_whole_rebase, codes=(2, 3, 7), well=(0, 4)),
    Scenario("rebase-take-back", "rebase --abort of a killed end", _half_written, _ABORT, "before",
             {"before": [_ABORT], "done": [_ABORT, _REBASE]}, (_GONE,), _rebased, _mended_somewhere, _REBASE_ROOTS,
             healthy=_whole_rebase, codes=(2, 3, 7), well=(0, 20)),
    # 2: it is pinned already
    Scenario("pin", "pin", _offered, _PIN, "end", {"end": [_PIN]}, ((Step(_PIN, None, (0, 2)), Step(_LIST, "end")),),
             _distribution, _beside, _OF_DISTRIBUTION, healthy=_tidy, codes=(2, 3, 7)),
    Scenario("drift", "drift", _offered, _DRIFT, "end", {"end": [_DRIFT]}, ((Step(_DRIFT, "end", (20,), _STATES),),), _drifted, _untouched,
             _OF_DISTRIBUTION, healthy=_tidy, codes=(2, 3, 7), well=(20,), says=_STATES),
    # A command that is killed is a bad one, a crash being what somebody looks for: which patch is named then, the next run tells.
    Scenario("bisect", "bisect", _with_check, _BISECT, "end", {"end": [_BISECT]}, (_FOUND,), _whole, _untouched,
             _OF_DISTRIBUTION, healthy=_tidy, codes=(2, 3, 7), says="broken by ", weight=2),
    Scenario("prove", "prove", _tested, _PROVE, "end", {"end": [_PROVE]}, ((Step(_PROVE, "end"),),), _whole, _beside,
             _OF_DISTRIBUTION, healthy=_tidy, codes=(1, 2, 3, 7), weight=3),
)  # fmt: skip
