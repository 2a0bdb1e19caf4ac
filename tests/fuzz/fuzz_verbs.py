"""Runs status, apply, revert and repair on workspaces whose state or journal somebody changed; strace watches what they write.

    python fuzz_verbs.py FOLDER SEED FIRST COUNT

FOLDER holds distribution/, cache/ and template/: a workspace with a tree of its own and one of --in-place. Each case gets a
copy of it at FOLDER/inside/ws, and prints a line: number, verb, exit code. One process for all, which forks for each verb.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

from fuzz_values import changed_bytes, changed_value

VERBS = (("status",), ("apply", "--profile", "full"), ("revert",), ("repair",), ("apply", "--profile", "full"))


def files_of(workspace: Path) -> dict[str, bytes]:
    """The state of a workspace, and the journal of a run that was to take its trees to their bases."""
    text = (workspace / ".patchctl" / "state.json").read_text()
    state = json.loads(text)
    changes = [
        {
            "name": name,
            "kind": tree["kind"],
            "folder": tree["folder"],
            "base": tree["base_commit"],
            "source": tree["tip_commit"],
            "target": tree["base_commit"],
            "stash": None,
            "generated": {},
            "known": tree["generated"],
            "forget": tree["kind"] == "into",
            "record": "",
        }
        for name, tree in state["trees"].items()
    ]
    at_base = {
        name: {
            **tree,
            "tip_commit": tree["base_commit"],
            "tip_tree": tree["base_tree"],
            "patches": [],
            "left_out": [],
            "locked": False,
        }
        for name, tree in state["trees"].items()
        if tree["kind"] == "managed"
    }
    after = {**state, "profile": None, "trees": at_base}
    journal = {"version": 1, "verb": "revert", "changes": changes, "after": after}
    return {"state.json": text.encode(), "journal.json": json.dumps(journal).encode()}


def changed(rng: random.Random, good: dict[str, bytes], more: tuple[Any, ...]) -> dict[str, bytes]:
    """The files to be written: one of them changed, the journal there or not."""
    files = dict(good)
    if rng.random() < 0.5:
        del files["journal.json"]
    name = rng.choice(sorted(files))
    if rng.random() < 0.8:
        value = changed_value(rng, json.loads(files[name]), more)
        files[name] = json.dumps(value).encode("utf-8", "surrogatepass")
    else:
        files[name] = changed_bytes(rng, files[name])
    return files


def run_case(folder: Path, files: dict[str, bytes], number: int) -> None:
    """All verbs, one after the other, on one copy."""
    inside = folder / "inside"
    shutil.rmtree(inside, ignore_errors=True)
    shutil.copytree(folder / "template", inside, symlinks=True)
    for name, data in files.items():
        (inside / "ws" / ".patchctl" / name).write_bytes(data)
    for verb in VERBS:
        child = os.fork()
        if child == 0:
            _run(folder, inside, verb)
        _, status = os.waitpid(child, 0)
        print(number, verb[0], os.waitstatus_to_exitcode(status), flush=True)


def _run(folder: Path, inside: Path, verb: tuple[str, ...]) -> None:
    """In the child: what the command line does, its words in a file."""
    from patchctl.__main__ import run

    code = 99
    try:
        os.chdir(inside)
        said = os.open(inside / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(said, 1)
        os.dup2(said, 2)
        options = [f"--root={folder / 'distribution'}", f"--cache={folder / 'cache'}"]
        code = run([*options, verb[0], "--workspace", str(inside / "ws"), *verb[1:]])
        sys.stdout.flush()
        if code == 70:
            shutil.copyfile(inside / "said", folder / "fault")
    finally:
        os._exit(code)


def main() -> None:
    folder = Path(sys.argv[1])
    seed, first, count = map(int, sys.argv[2:])
    __import__("patchctl.cli.workspace_verbs")
    good = files_of(folder / "template" / "ws")
    more = (
        str(folder / "decoy"),
        "../../decoy",
        "../decoy",
        f"{folder}/inside/../decoy",
        "decoy",
        str(folder / "inside" / "clock"),
        "greeter",
        "clock",
    )
    for number in range(first, first + count):
        run_case(folder, changed(random.Random(f"{seed} verbs {number}"), good, more), number)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder / "inside")


if __name__ == "__main__":
    main()
