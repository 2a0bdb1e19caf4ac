#!/usr/bin/env python3
"""requirements.py PROFILE PYTHON: what the installed trees declare to need, with the profile's versions in place of theirs.

The trees do not agree with each other (verl's requirements-npu.txt wants another transformers than vllm does), and a
profile says what it runs on. Printed as pip reads requirements. Runs under patchctl's own interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from patchctl.manifest.distribution import Distribution, find_root

# Names of the distributions that the trees are installed as.
OURS = ("verl", "vllm", "vllm-ascend", "megatron-core", "mindspeed")
DECLARED = (
    "import importlib.metadata as m, json, sys\n"
    "def of(name):\n"
    "    try: return m.requires(name) or []\n"
    "    except m.PackageNotFoundError: return []\n"
    "print(json.dumps([line for name in sys.argv[1:] for line in of(name)]))"
)


def main(profile_name: str, python: str) -> None:
    root = find_root(None, Path.cwd())
    dist = Distribution.load(root, None)
    pinned = pins(dist, profile_name)
    done = subprocess.run([python, "-c", DECLARED, *OURS], check=True, stdout=subprocess.PIPE, text=True)
    for line in requirements(json.loads(done.stdout), pinned):
        print(line)


def pins(dist: Distribution, profile_name: str) -> dict[str, str]:
    """The profile's versions of Python packages, by canonical name, as pip writes them."""
    found = {}
    for name, version in dist.profile(profile_name).runtime.items():
        requirement = dist.requirements[name]
        if requirement.kind == "python" and requirement.distribution:
            exact = version[0].isdigit()
            found[canonicalize_name(requirement.distribution)] = f"=={version}" if exact else version
    return found


def requirements(declared: list[str], pinned: dict[str, str]) -> list[str]:
    """Lines without the trees themselves and without extras that nobody asked for, each name pinned by the profile once."""
    lines = {f"{name}{version}" for name, version in pinned.items()}
    for text in declared:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and name not in OURS and name not in pinned:
            lines.add(text.partition(";")[0].strip())
    return sorted(lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
