"""patchctl doctor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, complete_profile, format_option, print_findings, release_option
from patchctl.cli.sources import Sources
from patchctl.errors import BadManifest, WrongUse
from patchctl.findings.report import Finding, looked_at
from patchctl.language.messages import message

if TYPE_CHECKING:
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Stack


@click.command("doctor")
@click.option(
    "--profile", "-p", metavar="NAME", shell_complete=complete_profile, help="Look at what this profile needs."
)
@release_option
@click.option(
    "--mirror", "mirrors", multiple=True, metavar="NAME=URL", help="Another git place for an upstream. Repeatable."
)
@click.option("--offline", is_flag=True, help="Ask nobody on the network.")
@click.option(
    "--python", metavar="PY", help="The Python of training and tests [default: PATCHCTL_TORCH_PYTHON, else patchctl's]."
)
@format_option("patchctl.report.machine:DoctorOutput")
@click.pass_obj
def command(
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
    from patchctl.findings.formats import Shown
    from patchctl.findings.report import Report
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
        yield check_ssh_keygen(app.user_config.bundles)
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
    from patchctl.identify.lists import read_tree_list

    lists = [read_tree_list(dist.root, stack) for stack in stacks]
    return sum(len(found.files) for found in lists if found) if all(lists) else None
