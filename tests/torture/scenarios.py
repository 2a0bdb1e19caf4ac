"""The runs that are tortured: what is there before, the command, what may come next, and what has to stay whatever happens."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import maintaining
from box import Box, belongings, settle
from distribution import git, write_files
from on_disk import Snapshot, snapshot
from scenario import Args, Lacking, Scenario, Step, Way, healthy

from patchctl.install.wheel import REQUIREMENTS

_WS = ("--workspace", "BOX/ws")
_FULL: Args = ("apply", "--profile", "full", *_WS)
_PLAIN: Args = ("apply", "--profile", "plain", *_WS)
_REVERT: Args = ("revert", *_WS)
_INTO: Args = (*_FULL, "--in-place", "shapes=BOX/checkout")
_ENDS: dict[str, Sequence[Args]] = {"full": [_FULL], "plain": [_PLAIN], "base": [_FULL, _REVERT]}
_TO_FULL: Way = (Step(_FULL, "full"),)
_TO_PLAIN: Way = (Step(_PLAIN, "plain"),)
_BACK: Way = (Step(_REVERT, "base"), Step(_FULL, "full"))


def _nothing(box: Box) -> None:
    pass


def _applied(profile: str) -> Callable[[Box], None]:
    def prepare(box: Box) -> None:
        box.good("apply", "--profile", profile, "--workspace", str(box.ws))
        settle(box.ws / "shapes")
        (box.ws / "own.txt").write_text("beside the trees\n")

    return prepare


def _edited(box: Box) -> None:
    _applied("plain")(box)
    core = box.ws / "shapes/shapes/core.py"
    core.write_text(core.read_text() + "MINE = 1\n")
    (box.ws / "shapes/shapes/plain").write_text("my own words\n")


def _trees(box: Box) -> Snapshot:
    """The trees without what `settle` put there."""
    mine = ("own.txt", "shapes/notes.txt", "shapes/run.log")
    return {p: s for p, s in box.trees().items() if p not in mine}


def _of_user(box: Box) -> Any:
    return belongings(box.ws / "shapes"), (box.ws / "own.txt").read_bytes(), snapshot(box.beside)


def _beside(box: Box) -> Any:
    return snapshot(box.beside)


def _of_user_or_branch(box: Box) -> Any:
    """What was edited is in its place or on a branch of the tree."""
    tree = box.ws / "shapes"
    refs = git(tree, "for-each-ref", "--format=%(refname)", "refs/heads/patchctl-stash*").split()
    contents = {"shapes/plain": b"my own words\n", "notes.txt": b"do not lose me\n", "shapes/core.py": b"MINE = 1\n"}
    held = {}
    for path, content in contents.items():
        there = (tree / path).read_bytes() if (tree / path).is_file() else b""
        on_branch = any(
            content in git(tree, "cat-file", "blob", blob).encode() for blob in _text_blobs(tree, refs, path)
        )
        held[path] = content in there or on_branch
    mine = {p: c for p, c in belongings(tree).items() if not p.endswith("notes.txt")}
    return held, mine, (box.ws / "own.txt").read_bytes(), snapshot(box.beside)


def _text_blobs(tree: Path, refs: Sequence[str], path: str) -> list[str]:
    return [line.split()[2] for ref in refs for line in git(tree, "ls-tree", ref, "--", path).splitlines()]


# --in-place


def _checkout(box: Box) -> None:
    git(box.folder, "clone", "--quiet", str(box.made.origins / "shapes"), str(box.at("checkout")))
    settle(box.at("checkout"))


def _into(box: Box) -> None:
    _checkout(box)
    box.good(*(a.replace("BOX", str(box.folder)) for a in _INTO))


def _owner(box: Box) -> Any:
    folder = box.at("checkout")
    more = (".git/HEAD", ".git/config", ".git/index", ".git/refs/heads/main", ".git/logs/HEAD", ".git/packed-refs")
    return belongings(folder, *more), snapshot(box.beside)


def _with_checkout(box: Box) -> Any:
    """The files, and which of our references the owner's repository has."""
    folder = box.at("checkout")
    files = {
        p: s for p, s in snapshot(folder).items() if p.split("/")[0] != ".git" and p not in ("notes.txt", "run.log")
    }
    refs = git(folder, "for-each-ref", "--format=%(refname) %(objectname)", "refs/patchctl/")
    return box.trees(), files, refs


def _healthy_into(box: Box) -> list[str]:
    found = healthy(box) if (box.ws / ".patchctl/state.json").is_file() else []
    said = git(box.at("checkout"), "fsck", "--full", "--strict", "--no-dangling")
    return [*found, *([f"git fsck in the checkout: {said}"] if said else [])]


# Stacks


def _opened(box: Box) -> None:
    box.good("edit", "shapes", "--dir", str(box.at("edit/shapes")))


def _committed(box: Box) -> None:
    _opened(box)
    tree = box.at("edit/shapes")
    write_files(tree, {"shapes/late.py": "LATE = 1\n", "shapes/later.py": "LATER = 1\n"})
    core = tree / "shapes/core.py"
    core.write_text(core.read_text().replace("VALUE_10 = 10\n", "VALUE_10 = 100\n"))
    git(tree, "add", "--all")
    trailers = "Feature: late\nSwitch: env SHAPES_LATE=1\nUpstream-Status: Pending\nDrop-When: never"
    body = "Need: somebody asks.\n\nIt does.\n\nRisk: none."
    person = ("-c", "user.name=patchctl", "-c", "user.email=patchctl@localhost")
    git(tree, *person, "commit", "--quiet", "-m", f"core: come late\n\n{body}\n\n{trailers}")


def _edit_tree(box: Box) -> Any:
    folder = box.at("edit/shapes")
    files = {p: s for p, s in snapshot(folder).items() if p.split("/")[0] != ".git"}
    asked = [("rev-parse", "HEAD", "HEAD^{tree}"), ("symbolic-ref", "HEAD"), ("status", "--porcelain")]
    return files, [git(folder, *args) for args in asked]


def _whole_edit(box: Box) -> list[str]:
    said = git(box.at("edit/shapes"), "fsck", "--full", "--strict", "--no-dangling")
    return [*([f"git fsck: {said}"] if said else []), *_litter(box.at("edit"), "shapes")]


def _keeps_tests(box: Box) -> None:
    """A distribution that has its tests with it: `new` begins some."""
    write_files(box.made.root, {"tests/behaviour/harness.py": ""})


def _begun(box: Box) -> Any:
    """The files that `new` wrote, the work tree, and its commit but for the time at which it was made."""
    folder = box.at("edit/shapes")
    files = {p: s for p, s in snapshot(folder).items() if p.split("/")[0] != ".git"}
    asked = [("log", "-2", "--format=%an %T %B"), ("symbolic-ref", "HEAD"), ("status", "--porcelain")]
    return _distribution(box), files, [git(folder, *args) for args in asked]


def _litter(folder: Path, *wanted: str) -> list[str]:
    """What lies in a folder beside what a command was to put there."""
    return [f"left behind: {p}" for p in sorted(folder.iterdir()) if p.name not in wanted]


def _distribution(box: Box) -> Snapshot:
    return snapshot(box.made.root)


def _with_work(box: Box) -> Any:
    tree = box.at("edit/shapes")
    return git(tree, "rev-parse", "HEAD", "HEAD^{tree}"), git(tree, "status", "--porcelain"), snapshot(box.beside)


def _no_litter(box: Box) -> list[str]:
    """No unfinished file beside the bundle, or in the distribution."""
    hidden = [p for p in box.made.root.rglob("*") if p.name.startswith(".") or p.name.endswith((".new", ".tmp"))]
    found = [f"left behind: {p}" for p in hidden]
    found += _litter(box.at("out"), "it.tar") if box.at("out").is_dir() else []
    return found + (_litter(box.at("spread"), "it") if box.at("spread").is_dir() else [])


def _unlocked(box: Box) -> None:
    """Locks of older patches, and a cache that remembers nothing."""
    for file in (box.made.root / "manifests/locks").rglob("*.json"):
        data = json.loads(file.read_text())
        for patch in data["patches"]:
            patch["digest"] = "0" * 64
        file.write_text(json.dumps(data))
    shutil.rmtree(box.made.cache / "stacks", ignore_errors=True)


# repair and import


def _damaged(box: Box) -> None:
    """A tree with an edit, whose index git cannot read."""
    _applied("plain")(box)
    (box.ws / "shapes/shapes/plain").write_text("my own words\n")
    (box.ws / "shapes/.git/index").write_bytes(b"DIRC and no more")


def _repaired(box: Box) -> Snapshot:
    return {p: s for p, s in _trees(box).items() if not p.startswith("repair-")}


def _of_user_or_aside(box: Box) -> Any:
    """The edit is in its place or in a folder of repair's, and so is the broken index; the rest is where it was."""
    edits = [box.ws / "shapes/shapes/plain", *box.ws.glob("repair-*/shapes/shapes/plain*")]
    indexes = [box.ws / "shapes/.git/index", *box.ws.glob("repair-*/**/index*")]
    return (
        any(p.is_file() and p.read_bytes() == b"my own words\n" for p in edits),
        any(p.is_file() and p.read_bytes() == b"DIRC and no more" for p in indexes),
        *_of_user(box),
    )


def _mailed(box: Box) -> None:
    """Two mails for the stack of shapes, from its own work tree."""
    _committed(box)
    tree = box.at("edit/shapes")
    write_files(tree, {"shapes/latest.py": "LATEST = 1\n"})
    git(tree, "add", "--all")
    git(
        tree,
        "-c",
        "user.name=patchctl",
        "-c",
        "user.email=patchctl@localhost",
        "commit",
        "--quiet",
        "-m",
        "core: come last",
    )
    git(tree, "format-patch", "--quiet", "-2", "-o", str(box.at("mails")))
    shutil.rmtree(box.at("edit"))


def _mails(box: Box) -> Any:
    return snapshot(box.at("mails")), snapshot(box.beside)


# Sources and bundles


def _cold(box: Box) -> None:
    shutil.rmtree(box.made.cache)


def _cache(box: Box) -> Any:
    """The names of what the cache holds of shapes, and whether it has a form of clock: where the git that serves the one is killed,
    that place has failed, and the package index is asked for the other."""
    names = snapshot(box.made.cache)
    shapes = {p: "" for p in names if p.startswith("git/shapes/")}
    return {**shapes, "clock": any(p.endswith("/patchctl.json") and p.split("/")[1] == "clock" for p in names)}


def _older_bundle(box: Box) -> None:
    box.at("out").mkdir()
    box.good("bundle", "create", "--profile", "plain", "--out", str(box.at("out/it.tar")))


def _torn_bundle(box: Box) -> list[str]:
    done = box.run(["bundle", "verify", str(box.at("out/it.tar"))])
    return [] if done.status == 0 else [f"the bundle is neither the old nor the new one: {done.err}"]


def _bundle(box: Box) -> str:
    return hashlib.sha256(box.at("out/it.tar").read_bytes()).hexdigest()


def _bundle_only(box: Box) -> None:
    _older_bundle(box)
    box.good("bundle", "create", "--profile", "full", "--out", str(box.at("out/it.tar")))
    _cold(box)
    box.at("spread").mkdir()


def _unpacked(box: Box) -> Snapshot:
    return snapshot(box.at("spread/it"))


# The node's part of `cluster apply`


def _node(box: Box) -> Callable[[], int]:
    from patchctl.cluster import task
    from patchctl.cluster.facts import ApplyOptions, Request
    from patchctl.cluster.request import make_payload
    from patchctl.manifest.distribution import Distribution

    payload = make_payload(Distribution.load(box.made.root)).data
    request = Request("apply", str(box.ws), "/nowhere", "full", str(box.made.root), None, 50.0, apply=ApplyOptions())

    def answer() -> int:
        try:
            told = task.answer(payload, request.as_json(), None)
        except Exception as error:  # Ray brings it to the driver, which says that this node's task failed
            print(f"the task failed: {error}")
            return 1
        print(json.dumps(told))
        if "facts" not in told:
            return 1  # what the driver reports as a node that failed
        failed = told["facts"]["failed"]
        return failed["exit_code"] if failed else 0

    return answer


# install


def _environment(box: Box, profile: str = "full") -> None:
    """A workspace, and an environment that has what setup.py needs from this one."""
    box.good("apply", "--profile", profile, "--workspace", str(box.ws))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(box.at("env"))], check=True)
    packages = next(box.at("env").glob("lib/python*/site-packages"))
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(packages)]
    done = subprocess.run([*line, "pip", *REQUIREMENTS], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Lacking(f"pip cannot have what setup.py needs: {done.stderr.strip().splitlines()[-1:]}")
    (packages / "mine.py").write_text("MINE = 1\n")


def _one_tree(box: Box) -> None:
    """The same of one tree alone: a second takes as long again, and no other calls."""
    alone = "schema: 1\nname: alone\nsummary: One tree.\nstacks:\n  shapes: v1\n"
    (box.made.root / "manifests/profiles/alone.yaml").write_text(alone)
    _environment(box, "alone")


def _installed(box: Box) -> Any:
    """What Python imports, and that its files are those of the trees."""
    packages = next(box.at("env").glob("lib/python*/site-packages"))
    found = {
        p: s for p, s in snapshot(packages).items() if p.split("/")[0] in ("shapes", "clock") and "__pycache__" not in p
    }
    infos = sorted(p.name for p in packages.glob("*.dist-info") if p.name.startswith(("shapes", "clock")))
    return found, infos, sorted(p.name for p in packages.iterdir() if p.name.startswith(("~", ".")))


def _installed_before(box: Box) -> None:
    """One tree, which is installed there already: pip takes it away first."""
    _one_tree(box)
    box.good(*(a.replace("BOX", str(box.folder)) for a in _INSTALL))


def _of_env(box: Box) -> Any:
    packages = next(box.at("env").glob("lib/python*/site-packages"))
    return (packages / "mine.py").read_text(), box.trees(), snapshot(box.beside)


_INSTALL: Args = ("install", *_WS, "--python", "BOX/env/bin/python", "--no-build-isolation")
_EDIT: Args = ("edit", "shapes", "--dir", "BOX/edit/shapes")
_NEW: Args = ("new", "fresh", "--stack", "shapes", "--dir", "BOX/edit/shapes")
_EXPORT: Args = ("export", "shapes", "--dir", "BOX/edit/shapes")
_FETCH: Args = ("fetch", "--profile", "full")
_CREATE: Args = ("bundle", "create", "--profile", "full", "--out", "BOX/out/it.tar")
_UNPACK: Args = ("bundle", "unpack", "BOX/out/it.tar", "--to", "BOX/spread/it")
_STASH: Args = (*_FULL, "--stash")
_FROM_BUNDLE: Args = (*_FULL, "--bundle", "BOX/out/it.tar")
_REPAIR: Args = ("repair", *_WS)
_IMPORT: Args = ("import", "BOX/mails", "--stack", "shapes")
_NEVER_MIND: Way = (Step(_REVERT, None, (0, 2)), Step(_FULL, "full"))  # 2: nothing was applied yet


def _again(args: Args) -> Way:
    return (Step(args, "end"),)


ALL: tuple[Scenario, ...] = (
    Scenario("apply", "apply, the first", _nothing, _FULL, "full", _ENDS, (_TO_FULL, _NEVER_MIND, _TO_PLAIN), _trees, _beside),
    Scenario("switch", "apply, another profile", _applied("plain"), _FULL, "full", {**_ENDS, "plain": []},
             (_TO_FULL, _BACK, _TO_PLAIN), _trees, _of_user),
    Scenario("revert", "revert", _applied("full"), _REVERT, "base", {**_ENDS, "full": [], "base": [_REVERT]},
             ((Step(_REVERT, "base"),), _TO_FULL, _TO_PLAIN), _trees, _of_user),
    Scenario("stash", "apply --stash", _edited, _STASH, "full", {"full": [_STASH], "base": [_STASH, _REVERT]},
             ((Step(_STASH, "full"),), (Step((*_REVERT, "--stash"), "base"),),
              (Step(_FULL, None, (0, 5)), Step(_STASH, "full"))), _trees, _of_user_or_branch, codes=(0, 2, 3, 5, 7)),
    Scenario("into", "apply --in-place", _checkout, _INTO, "full", {"full": [_INTO], "base": [_INTO, _REVERT]},
             ((Step(_INTO, "full"),), (Step(_REVERT, None, (0, 2)), Step(_INTO, "full"), Step(_REVERT, "base"))),
             _with_checkout, _owner, ("ws", "cache", "tmp", "checkout"), healthy=_healthy_into),
    Scenario("into-revert", "revert of --in-place", _into, _REVERT, "base", {"full": [], "base": [_REVERT]},
             ((Step(_REVERT, "base"),), (Step(_INTO, "full"), Step(_REVERT, "base"))),
             _with_checkout, _owner, ("ws", "cache", "tmp", "checkout"), healthy=_healthy_into),
    Scenario("repair", "repair", _damaged, _REPAIR, "end", {"end": [_REPAIR], "full": [_REPAIR, _FULL]},
             (_again(_REPAIR), (Step(_FULL, None, (0, 5)), Step(_REPAIR), Step(_FULL, "full"))), _repaired, _of_user_or_aside),
    Scenario("import", "import", _mailed, _IMPORT, "end", {"end": [_IMPORT]},
             ((Step(_IMPORT, None, (0, 2, 4)), Step(("list",), "end")),), _distribution, _mails,
             ("cache", "tmp", "distribution"), healthy=_no_litter, codes=(0, 2, 3, 4, 5, 7)),
    Scenario("edit", "edit", _nothing, _EDIT, "end", {"end": [_EDIT]}, (_again(_EDIT),), _edit_tree, _beside,
             ("edit", "cache", "tmp"), healthy=_whole_edit),
    Scenario("edit-again", "edit, a second time", _opened, _EDIT, "end", {"end": [_EDIT]}, (_again(_EDIT),), _edit_tree, _beside,
             ("edit", "cache", "tmp"), healthy=_whole_edit),
    Scenario("new", "new", _keeps_tests, _NEW, "end", {"end": [_NEW]}, ((Step(_NEW, "end", (0, 5)),),), _begun, _beside,
             ("edit", "cache", "tmp", "distribution"), codes=(0, 2, 3, 5, 7),
             healthy=lambda box: [*_no_litter(box), *_whole_edit(box)]),
    Scenario("export", "export", _committed, _EXPORT, "end", {"end": [_EXPORT]}, (_again(_EXPORT),), _distribution, _with_work,
             ("edit", "cache", "tmp", "distribution"), healthy=_no_litter),
    Scenario("lock", "lock", _unlocked, ("lock",), "end", {"end": [("lock",)]}, (_again(("lock",)),), _distribution, _beside,
             ("cache", "tmp", "distribution"), healthy=_no_litter),
    Scenario("fetch", "fetch", _cold, _FETCH, "end", {"end": [_FETCH]}, (_again(_FETCH), _again((*_FETCH, "--refresh"))),
             _cache, _beside, ("cache", "tmp"), healthy=_no_litter),
    Scenario("bundle-create", "bundle create", _older_bundle, _CREATE, "end", {"end": [_CREATE]}, (_again(_CREATE),),
             _bundle, _beside, ("cache", "tmp", "out"), healthy=_no_litter, torn=_torn_bundle),
    Scenario("bundle-unpack", "bundle unpack", _bundle_only, _UNPACK, "end", {"end": [_UNPACK]}, (_again(_UNPACK),),
             _unpacked, _beside, ("spread", "tmp"), healthy=_no_litter),
    Scenario("bundle-apply", "apply --bundle", _bundle_only, _FROM_BUNDLE, "full", {"full": [_FROM_BUNDLE]},
             ((Step(_FROM_BUNDLE, "full"),),), _trees, _beside),
    Scenario("install", "install", _one_tree, _INSTALL, "end", {"end": [_INSTALL]}, (_again(_INSTALL),), _installed, _of_env,
             ("env", "tmp", "cache", "ws/.patchctl", "home"), healthy=_no_litter, weight=10),
    Scenario("install-over", "install, over another", _installed_before, _INSTALL, "end", {"end": [_INSTALL]}, (_again(_INSTALL),),
             _installed, _of_env, ("env", "tmp", "cache", "ws/.patchctl", "home"), healthy=_no_litter, weight=10),
    Scenario("install-two", "install of two trees", _environment, _INSTALL, "end", {"end": [_INSTALL]}, (_again(_INSTALL),),
             _installed, _of_env, ("env", "tmp", "cache", "ws/.patchctl", "home"), healthy=_no_litter, weight=10),
    Scenario("cluster", "cluster apply, on a node", _nothing, ("cluster",), "full", {**_ENDS, "full": [_FULL]},
             (_TO_FULL, _NEVER_MIND), _trees, _beside, call=_node, codes=(0, 1, 2, 3, 7)),
    *maintaining.ALL,
)  # fmt: skip
