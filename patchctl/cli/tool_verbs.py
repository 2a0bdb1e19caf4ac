"""doctor, script and use; and what `patchctl --version` prints: the tool, the distribution in use, and its releases."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from patchctl import __version__
from patchctl.cli.app import App, flag, format_option, json_option, optional_profile, print_findings, release_option
from patchctl.cli.sources import Sources
from patchctl.errors import BadManifest, PatchctlError, WrongUse
from patchctl.findings import Finding, Report, Shown, looked_at
from patchctl.language import message

if TYPE_CHECKING:
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Stack
    from patchctl.report.sources import UseOutput


# A script's first sentence: of a shell script's comment, or of a module's docstring.
_ABOUT = re.compile(r'\A#!.*\n(?:# |""")(.*?)(?:[.:] |"""|$)', re.MULTILINE)


@click.command("doctor")
@optional_profile("Look at what this profile needs.")
@release_option
@click.option(
    "--mirror", "mirrors", multiple=True, metavar="NAME=URL", help="Another git place for an upstream. Repeatable."
)
@flag("--offline", "Ask nobody on the network.")
@click.option(
    "--python", metavar="PY", help="The Python of training and tests [default: PATCHCTL_TORCH_PYTHON, else patchctl's]."
)
@format_option("patchctl.report.machine:DoctorOutput")
@click.pass_obj
def doctor_command(
    app: App, profile: str | None, mirrors: tuple[str, ...], offline: bool, python: str | None, output: str
) -> int:
    """Say what this machine lacks, and what to do about it.

    Looks at git, Python, patchctl's dependencies, ssh-keygen, the cache's file system and whether every source can be had; then at
    a torch for the behaviour tests and, with --profile, at what training runs on, which patchctl itself does not need.
    Exit code 1 when something that patchctl needs is missing.

    \b
    Examples:
      patchctl doctor
      patchctl doctor --profile qwen3-235b
    """
    from patchctl.doctor.runtime import check_packages, check_runtime, check_torch
    from patchctl.report.machine import doctor_output, doctor_text

    progress = app.progress(output == "json")
    progress.start("doctor", None)
    try:
        findings = [*_machine(app, profile, mirrors, offline, progress.note), check_torch(python)]
        if profile is not None and not any(f.rule == "machine" and f.blocks for f in findings):
            dist = app.distribution
            findings += check_runtime(dist.requirements, dist.profile(profile).runtime, python)
            findings += check_packages(dist, dist.profile(profile), python)
    finally:
        progress.finish()
    report = Report(findings)
    data = doctor_output(findings, profile)
    print_findings(app, output, Shown(report, "doctor"), data, lambda style: doctor_text(findings, style))
    return report.exit_code()


def _machine(
    app: App, profile: str | None, mirrors: tuple[str, ...], offline: bool, note: Callable[[str], None]
) -> Iterator[Finding]:
    """The machine, then the distribution and its sources, as far as what was found allows to look."""
    from patchctl.doctor.machine import (
        check_cache,
        check_dependencies,
        check_git,
        check_locale,
        check_python,
        check_sources,
        check_ssh_keygen,
    )

    basics = [check_git(), check_python(sys.version_info[:3]), *check_dependencies(), check_locale()]
    yield from basics
    if any(f.blocks for f in basics):
        return  # manifests cannot be read without the dependencies, nor the cache without git
    try:
        config = app.user_config
    except BadManifest as error:
        hint = error.hint or message("mend the file, or set {variable} to another", variable="PATCHCTL_CONFIG")
        yield looked_at("machine", "configuration", "error", str(error), hint)
        return
    try:
        yield check_ssh_keygen(config.bundles)
        dist = _distribution(app, profile)
        stacks = _stacks(dist, profile) if dist else []
        yield from check_cache(app.cache_folder, _files(dist, stacks) if dist else None)
        if dist is None:
            what = message("none here: sources are not looked for")
            todo = message("change into a folder of one, or name it with --root DIR")
            yield looked_at("machine", "distribution", "warning", what, todo)
            return
        options = Sources(app, mirrors=mirrors, offline=offline).options()
    except BadManifest as error:
        yield looked_at("machine", "manifests", "error", str(error), error.hint)
        return
    yield from check_sources([(dist.upstream(s.upstream), s) for s in stacks], options, note)


def _distribution(app: App, profile: str | None) -> Distribution | None:
    """None where there is none and none was asked for."""
    try:
        return app.distribution
    except WrongUse:
        if app.root is not None or profile is not None:
            raise
        return None


def _stacks(dist: Distribution, profile: str | None) -> list[Stack]:
    if profile is not None:
        return list(dist.stacks_of(dist.profile(profile)).values())
    return [
        s for name in dist.upstreams for s in dist.stacks.values() if s.upstream == name and dist.of_named_release(s)
    ]


def _files(dist: Distribution, stacks: list[Stack]) -> int | None:
    """How many files the pins have; None where a list is missing."""
    from patchctl.stack.tree_lists import read_tree_list

    lists = [read_tree_list(dist.root, stack) for stack in stacks]
    return sum(len(found.files) for found in lists if found) if all(lists) else None


@click.command("script", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def script_command(app: App, name: str | None, arguments: tuple[str, ...]) -> None:
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
        lines = [f"{script:<{width}}  {about(file)}" for script, file in scripts.items()]
        print("\n".join(lines or ["this distribution has no scripts"]))
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
        hint = "`patchctl script` lists them" if scripts else None
        raise WrongUse(f"the distribution has no script {quoted(name)}{did_you_mean(name, scripts)}", hint=hint)
    python = os.environ.get("PATCHCTL_TORCH_PYTHON") or sys.executable
    line = ["bash" if name.endswith(".sh") else python, str(scripts[name]), *arguments]
    beside = Path(sys.executable).with_name("patchctl")
    environment = {**os.environ, "PATCHCTL_ROOT": str(app.found_root)}
    if app.release:  # of a bundle: its folder does not say which release it was made for
        environment["PATCHCTL_RELEASE"] = app.release
    if beside.is_file():
        environment.setdefault("PATCHCTL", str(beside))
    if lang := click.get_current_context().find_root().params.get("lang"):
        environment["PATCHCTL_LANG"] = lang
    sys.stdout.flush()
    os.execvpe(line[0], line, environment)


@click.command("use")
@click.argument("target", metavar="[URL[@REV] | COMMIT]", required=False)
@flag("--list", "List what was fetched; * marks the default.", "as_list")
@flag("--none", "Go back to the distribution installed with patchctl.", "forget")
@json_option("patchctl.report.sources:UseOutput")
@click.pass_obj
def use_command(app: App, target: str | None, as_list: bool, forget: bool, as_json: bool) -> None:
    """Fetch a distribution's repository at a revision, and take it wherever no other is named or around.

    REV is a tag, a branch or a commit [default: the remote's HEAD]; it is resolved once, and the commit is recorded. Every object
    is verified against the commit's id. Afterwards no network is needed; another `use` of a branch moves on. COMMIT, or its first
    seven digits, goes back to one that was fetched before.

    \b
    patchctl use URL@REV
    patchctl use --list
    """
    from patchctl.distributions import fetched, forget_default, use
    from patchctl.manifest.default_roots import chosen_root, own_root
    from patchctl.report.sources import UsedRow, UseOutput

    if sum((target is not None, as_list, forget)) != 1:
        raise WrongUse("name a URL, --list or --none", hint="`patchctl use --help` shows how it is used")
    if forget:
        forget_default()
    is_new = target is not None and use(target, app.progress(as_json)).fetched
    rows = [UsedRow(one, root, root == chosen_root()) for one, root in fetched()]
    data = UseOutput(rows, chosen_root() or own_root(), is_new)
    app.emit("use", data, lambda style: _use_text(data, as_list), as_json)


def _use_text(data: UseOutput, as_list: bool) -> Iterable[str]:
    for row in data.distributions:
        if as_list or row.default:
            at = f"@{row.used.revision}" if row.used.revision else ""
            yield f"{'*' if row.default else ' '} {row.used.commit[:12]}  {row.used.address}{at}"
    if as_list and not data.distributions:
        yield "none was fetched"
    yield f"default: {data.default or 'none'}"


def version_lines(app: App) -> list[str]:
    """Return the lines; without a distribution, or with a broken one, what is wrong with it."""
    lines = [f"patchctl {__version__}"]
    try:
        root = app.found_root
        lines.append(f"distribution: {_described(root)}")
        lines.append(f"releases: {', '.join(app.distribution.releases) or 'none'}")
    except PatchctlError as error:
        lines.append(f"distribution: {error}")
    return lines


def _described(root: Path) -> str:
    """Return where a distribution is, and its commit if it has one."""
    from patchctl.distributions import commit_of
    from patchctl.manifest.default_roots import own_root, used_at
    from patchctl.terminal.text import visible_line

    shown = visible_line(str(root))
    there, commit = used_at(root), commit_of(root)
    if there is not None:
        shown += f", {there.address}" + (f"@{there.revision}" if there.revision else "")
    elif root == own_root():
        shown += ", installed with patchctl"
    return shown + (f", commit {commit}" if commit else "")
