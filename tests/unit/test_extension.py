"""What training adds: every name is there, it is put in once, and the wing of patches works without it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from patchctl import extension
from patchctl.__main__ import compose
from patchctl.extension import Extension
from patchctl.training.registration import EXTENSION

REPOSITORY = Path(__file__).parents[2]
LATER = (
    "click",
    "patchctl.training.recipes",
    "patchctl.training.verbs",
    "patchctl.training.preflight",
    "pydantic",
    "yaml",
)


def names() -> list[str]:
    found = [command for _, command in EXTENSION.verbs.values()]
    for field in dataclasses.fields(Extension):
        if field.name not in ("verbs", "manifests"):
            found += getattr(EXTENSION, field.name)
    return found


@pytest.mark.parametrize("name", names())
def test_what_is_named_is_there(name: str) -> None:
    assert extension.load(name)


def test_a_second_time_changes_nothing() -> None:
    before = extension.registered()
    compose()
    assert extension.registered() == before == (EXTENSION,)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_to_compose_imports_nothing_of_training() -> None:
    code = "import sys, patchctl.__main__ as m; m.compose(); print(*(n for n in {later} if n in sys.modules))"
    assert python(code.format(later=LATER)) == ""


def test_apply_imports_nothing_of_training() -> None:
    code = "import sys, patchctl.__main__ as m; m.run(['apply', '--help']); print(*(n for n in sys.modules if n.startswith('patchctl.training')))"
    assert python(code).splitlines()[-1].split() == ["patchctl.training", "patchctl.training.registration"]


def test_without_training_its_verbs_and_manifests_are_unknown() -> None:
    code = "import sys; from patchctl.cli import run; sys.exit(run(sys.argv[1:]))"
    line = [sys.executable, "-c", code, f"--root={REPOSITORY}"]
    for verb, says in (("recipe", "No such command 'recipe'"), ("list", "the folder 'recipes' would not be read")):
        done = subprocess.run([*line, verb], cwd=REPOSITORY, capture_output=True, text=True)
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr
