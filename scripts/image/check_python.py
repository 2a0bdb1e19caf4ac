#!/usr/bin/env python3
"""check_python.py PROFILE PYTHON: whether an interpreter is the Python that the profile's release wants.

The lock of its requirements holds for that Python alone: in another, pip would end at the first package that has no wheel for it, after
everything was fetched. Ends with 2 where it is another. With RUNTIME=no, which installs nothing of the lock, it is said, and no more.
Runs under patchctl's own interpreter.
"""

from __future__ import annotations

import os
import sys

from patchctl.__main__ import compose
from patchctl.cli.app import App
from patchctl.doctor.runtime import Interpreter, fits
from patchctl.errors import PatchctlError
from patchctl.terminal.text import render_error

WRONG_USE = 2


def main(profile_name: str, python: str) -> int:
    compose()
    dist = App(root=None, cache=None, release=os.environ.get("PATCHCTL_RELEASE") or None).distribution
    try:
        profile = dist.profile(profile_name)
    except PatchctlError as error:
        render_error(error, as_json=False, program="check_python.py")
        return error.code
    wanted, asked = profile.runtime.get("python"), Interpreter(python, [])
    if wanted is None or (asked.version and fits(asked.version, wanted)):
        return 0
    found = f"is Python {asked.version}" if asked.version else f"cannot be asked: {asked.problem}"
    say(
        f"{python} of the base {found}; {profile_name} wants {wanted}{f' on release {profile.release}' if profile.release else ''}"
    )
    if os.environ.get("RUNTIME") == "no" and asked.version:
        say(
            "RUNTIME=no: what the trees run on is the base's own, and so is this; `patchctl preflight` counts it as an error"
        )
        return 0
    say(
        "try: a base of that Python (docs/images.md lists them by release); --python PY for another one of the base; or --release"
    )
    return WRONG_USE


def say(text: str) -> None:
    print(f"check_python.py: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
