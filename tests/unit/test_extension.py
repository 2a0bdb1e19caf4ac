"""What training adds: every name is there, it is put in once, and patchctl works without it. And what another package
adds: found by its entry point, and named where it is broken."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from patchctl import extension
from patchctl.__main__ import TRAINING, compose
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
    "importlib.metadata",
)


def names() -> list[str]:
    found = [command for _, command in EXTENSION.verbs.values()]
    for field in dataclasses.fields(Extension):
        if field.name not in ("verbs", "heading", "manifests"):
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
    code = "import sys, patchctl.__main__ as m, patchctl.extension as e; m.compose(); e.registered(); "
    code += "print(*(n for n in {later} if n in sys.modules))"
    assert python(code.format(later=LATER)) == ""


def test_apply_imports_nothing_of_training() -> None:
    code = "import sys, patchctl.__main__ as m; m.run(['apply', '--help']); "
    code += "print('and', *(n for n in sys.modules if n.startswith('patchctl.training')))"
    assert python(code).splitlines()[-1] == "and"


def test_without_training_its_verbs_and_manifests_are_unknown() -> None:
    code = "import sys; from patchctl.cli import run; sys.exit(run(sys.argv[1:]))"
    line = [sys.executable, "-c", code, f"--root={REPOSITORY}"]
    for verb, says in (("recipe", "No such command 'recipe'"), ("list", "unexpected folder 'recipes'")):
        done = subprocess.run([*line, verb], cwd=REPOSITORY, capture_output=True, text=True)
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr


# Another package: a distribution on the path, with an entry point and a verb.

_EXTENSION = """from patchctl.extension import Extension

EXTENSION = Extension(verbs={"greet": ("Greet somebody.", "acme_patches.verb:command")})
"""
_VERB = """import click


@click.command("greet")
@click.argument("name")
def command(name):
    click.echo(f"hello {name}")
"""
_POINTS = "[console_scripts]\nacme = acme_patches.verb:command\n\n[patchctl.extensions]\nacme = acme_patches.extension:EXTENSION\n"


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    files = {
        "acme_patches/__init__.py": "",
        "acme_patches/extension.py": _EXTENSION,
        "acme_patches/verb.py": _VERB,
        "acme_patches-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-patches\nVersion: 1.2\n",
        "acme_patches-1.2.dist-info/entry_points.txt": _POINTS,
    }
    for name, text in files.items():
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(text)
    return tmp_path / "lib"


def patchctl(path: Path, *args: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{REPOSITORY}"}
    line = [sys.executable, *flags, "-m", "patchctl", *args]
    return subprocess.run(line, cwd=path, env=env, capture_output=True, text=True, check=False)


def test_a_package_adds_a_verb_by_its_entry_point(acme: Path) -> None:
    greeted = patchctl(acme, "greet", "you")
    assert (greeted.returncode, greeted.stdout) == (0, "hello you\n"), greeted.stderr
    said = patchctl(acme, "--help").stdout
    assert "\n\nExtensions:\n  greet " in said
    assert re.search(r"greet +Greet somebody\.", said) and re.search(r"\n +preflight ", said)


def test_it_is_found_as_importlib_finds_it(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old := acme / "old/acme_patches-1.1.dist-info").mkdir(parents=True)
    (old / "entry_points.txt").write_text("[patchctl.extensions]\nacme = acme_patches.before:EXTENSION\n")
    (old / "METADATA").write_text("Name: acme-patches\nVersion: 1.1\n")
    monkeypatch.setattr(sys, "path", [str(acme), str(acme / "old"), str(acme / "none"), *sys.path])
    extension.installed.cache_clear()
    try:
        found = extension.installed()
    finally:
        extension.installed.cache_clear()
    assert found.keys() == {point.value for point in importlib.metadata.entry_points(group=extension.GROUP)}
    assert found["acme_patches.extension:EXTENSION"] == "acme_patches-1.2"


BROKEN = {
    "does not import": ("extension.py", "import no_such_module\n", "No module named 'no_such_module'"),
    "is no Python": ("extension.py", "EXTENSION = \n", "SyntaxError"),
    "lacks the name": ("extension.py", "", "has no attribute 'EXTENSION'"),
    "is none": ("extension.py", "EXTENSION = {}\n", "not a patchctl.extension.Extension"),
    "of another version": (
        "extension.py",
        _EXTENSION.replace("verbs=", "words="),
        "unexpected keyword argument 'words'",
    ),
    "a verb is there already": (
        "extension.py",
        _EXTENSION.replace('"greet"', '"apply"'),
        "the verb apply, which is there",
    ),
    "a verb does not import": ("verb.py", "import no_such_module\n", "No module named 'no_such_module'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_one_that_is_broken_is_named(acme: Path, case: str) -> None:
    file, text, says = BROKEN[case]
    (acme / "acme_patches" / file).write_text(text)
    done = patchctl(acme, "greet", "you")
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert says in done.stderr and "acme_patches-1.2" in done.stderr and done.stderr.count("error") <= 1


def test_training_is_there_without_any_metadata(tmp_path: Path) -> None:
    """As on a node of a cluster, where the package alone is on the path; and installed, by the entry point that it declares."""
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.endswith((".dist-info", ".pth")):
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "patchctl").symlink_to(REPOSITORY / "patchctl")
    line = [sys.executable, "-S", "-m", "patchctl", "recipe", "--help"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "recipe show" in done.stdout, done.stderr
    assert f'training = "{TRAINING}"' in (REPOSITORY / "pyproject.toml").read_text()
