"""patchctl script."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from patchctl.cli.app import App
from patchctl.errors import WrongUse

# A script's first sentence: of a shell script's comment, or of a module's docstring.
_ABOUT = re.compile(r'\A#!.*\n(?:# |""")(.*?)(?:[.:] |"""|$)', re.MULTILINE)


@click.command("script", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(app: App, name: str | None, arguments: tuple[str, ...]) -> None:
    """Run a script of the distribution with ARGUMENTS, or list the scripts.

    The scripts of a clone's scripts/ folder, wherever the distribution is. Python scripts run in PATCHCTL_TORCH_PYTHON,
    else in patchctl's own Python.

    \b
    Examples:
      patchctl script
      patchctl script ray_cluster.sh --help
    """
    scripts = scripts_of(app.found_root)
    if name is None:
        width = max(map(len, scripts), default=0)
        print("\n".join(f"{script:<{width}}  {about(file)}" for script, file in scripts.items()))
        return
    run_script(app, name, arguments)


def scripts_of(root: Path) -> dict[str, Path]:
    """Return the scripts that may be run, by name below scripts/: those whose first line names an interpreter."""
    files = sorted((*(root / "scripts").glob("*.*"), *(root / "scripts").glob("evaluate/*.sh")))
    there = (f for f in files if f.suffix in (".sh", ".py") and f.read_bytes()[:2] == b"#!")
    return {file.relative_to(root / "scripts").as_posix(): file for file in there}


def about(file: Path) -> str:
    found = _ABOUT.match(file.read_text(encoding="utf-8"))
    return found[1].rstrip(".") if found else ""


def run_script(app: App, name: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a script of the distribution, which finds this patchctl and this distribution."""
    from patchctl.manifest.diagnostics import did_you_mean, quoted

    scripts = scripts_of(app.found_root)
    if name not in scripts:
        hint = "`patchctl script` lists them"
        raise WrongUse(f"the distribution has no script {quoted(name)}{did_you_mean(name, scripts)}", hint=hint)
    python = os.environ.get("PATCHCTL_TORCH_PYTHON") or sys.executable
    line = ["bash" if name.endswith(".sh") else python, str(scripts[name]), *arguments]
    beside = Path(sys.executable).with_name("patchctl")
    environment = {**os.environ, "PATCHCTL_ROOT": str(app.found_root)}
    if beside.is_file():
        environment.setdefault("PATCHCTL", str(beside))
    if lang := click.get_current_context().find_root().params.get("lang"):
        environment["PATCHCTL_LANG"] = lang
    sys.stdout.flush()
    os.execvpe(line[0], line, environment)
