"""patchctl install."""

from __future__ import annotations

from pathlib import Path

import click

from patchctl.cli.app import App, format_option, print_findings, workspace_option
from patchctl.errors import WrongUse


@click.command("install")
@workspace_option
@click.option("--python", metavar="PY", required=True, help="The interpreter of the environment, which has pip.")
@click.option(
    "--editable", "-e", is_flag=True, help="Lead to the trees instead of copying them: each later apply counts."
)
@click.option(
    "--build-native",
    is_flag=True,
    help="Let upstream's builds compile their extensions with what is there: compilers, CANN, torch.",
)
@click.option(
    "--no-build-isolation",
    is_flag=True,
    help="Run setup.py with the environment's setuptools, instead of fetching one for this run.",
)
@click.option("--dry-run", is_flag=True, help="Check and build everything, and install nothing.")
@format_option("patchctl.report.machine:InstallOutput")
@click.pass_obj
def command(
    app: App,
    workspace: Path,
    python: str,
    editable: bool,
    build_native: bool,
    no_build_isolation: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Put the patched trees of a workspace into a Python environment, without their dependencies.

    Each package gets upstream's own name, version and entry points; nothing is compiled unless asked. A workspace with
    edits, or another one than the lock promises, is refused, and so is an environment in which another place would hide
    a package. Afterwards Python is asked; `patchctl status --python PY` asks again at any time.

    \b
    patchctl install --workspace workspace --python .venv/bin/python
    patchctl install --workspace workspace --python /usr/local/bin/python3 --editable --no-build-isolation
    """
    from patchctl.findings.formats import Shown
    from patchctl.install.install import InstallOptions, install, interpreter
    from patchctl.manifest.distribution import Distribution
    from patchctl.report.machine import InstallOutput, install_report, install_text

    workspace = workspace.absolute()
    root = app.root_of(workspace)
    if root is None:
        raise WrongUse("the distribution that the workspace was made from is not there", hint="name it with --root DIR")
    options = InstallOptions(interpreter(python), editable, build_native, not no_build_isolation, dry_run)
    found = install(workspace, Distribution.load(root, app.cache_folder), options, app.progress(output == "json"))
    data = InstallOutput(workspace, options, found)
    shown = Shown(install_report(found, options), "install")
    print_findings(app, output, shown, data, lambda style: install_text(found, options, workspace, style))
