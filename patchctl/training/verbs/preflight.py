"""patchctl preflight."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from patchctl.cli.app import App, flag, format_option, print_findings, verbose_option, workspace_option
from patchctl.errors import PatchctlError, WrongUse
from patchctl.language import message, translated
from patchctl.terminal.text import visible_line
from patchctl.training.verbs import options

if TYPE_CHECKING:
    from patchctl.findings import Finding
    from patchctl.training.preflight.case import Case
    from patchctl.training.preflight.machine import Machine
    from patchctl.training.recipes.resolve import RecipeRun

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("preflight")
@options.profile_of_recipe
@options.recipe_option
@options.recipe_overrides
@workspace_option
@click.option(
    "--python",
    metavar="PY",
    help="The Python of training: versions and imports are asked of it [default: PATCHCTL_TORCH_PYTHON, else patchctl's].",
)
@click.option("--machine", "folder", type=_FOLDER, metavar="DIR", help="Look at a recording in place of this machine.")
@click.option(
    "--record", type=_FOLDER, metavar="DIR", help="Also write what was looked at to a new folder, for --machine."
)
@click.option(
    "--mean-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Prompt and answer on average, for sequences at once [default: the recipe's mean_length].",
)
@click.option("--accept", multiple=True, metavar="NAME", help="Go on in spite of a finding, by its name. Repeatable.")
@flag("--clear-caches", "Take compile caches away that are older than CANN, after a question.")
@flag("--yes", "Clear without the question.")
@verbose_option("the checks that passed")
@format_option("patchctl.training.report.preflight:PreflightOutput")
@click.pass_obj
def command(
    app: App,
    arguments: options.RecipeArguments,
    workspace: Path,
    python: str | None,
    folder: Path | None,
    record: Path | None,
    mean_tokens: int | None,
    accept: tuple[str, ...],
    clear_caches: bool,
    yes: bool,
    verbose: bool,
    output: str,
) -> int:
    """Look whether a machine can run a recipe, before hours are spent; every finding says what to do.

    Devices, driver, CANN and packages; shared memory, open files, ports, network interface; the controller's memory; files,
    weights and disk; weights, KV cache and activations on a device, with the largest max_num_seqs that fits; the patched trees.
    Run it on every node, in the shell that starts Ray there.

    \b
    patchctl preflight -p qwen3-235b -r grpo --nodes 8 --path model=/data/Qwen3-235B-A22B
    patchctl preflight -p qwen3-32b -r gspo --record node7     # on a node
    patchctl preflight -p qwen3-32b -r gspo --machine node7    # anywhere else

    Exit code 1 when something is in the way, or nobody could look at it. docs/preflight.md explains every finding.
    """
    from patchctl.findings import Report, Shown
    from patchctl.training.preflight.checks import all_findings
    from patchctl.training.preflight.machine import record as write
    from patchctl.training.report.preflight import preflight_output, preflight_text

    if folder is not None and (record is not None or clear_caches):
        raise WrongUse(message("--machine looks at another machine: neither --record nor --clear-caches goes with it"))
    if output == "json" and clear_caches and not yes:
        raise WrongUse(message("--clear-caches asks a question, which --json cannot"), hint=message("add --yes"))
    run = options.RecipeBook(app).valid_run(arguments)
    case = case_of(app, run, _machine(app, run, folder, workspace, python, output == "json"), mean_tokens)
    if record is not None:
        write(case.machine, record)
    findings = all_findings(case, accept)
    findings = [*other_release(app, arguments, accept)(case, findings), *findings]
    for name in sorted(set(accept) - {f.name for f in findings}):  # no error: on another node there may be one
        what = message("--accept {name}: no finding is called so here", name=visible_line(name))
        click.echo(f"patchctl: {translated(what)}", err=True)
    cleared = _clear(case, yes) if clear_caches else []
    data = preflight_output(case, findings, cleared, record)
    report = Report(findings)
    named = click.get_current_context().get_parameter_source("workspace") is ParameterSource.COMMANDLINE
    text = partial(preflight_text, case, findings, cleared, verbose=verbose, workspace=workspace if named else None)
    print_findings(app, output, Shown(report, "preflight"), data, text)
    return report.exit_code()


def _machine(
    app: App, run: RecipeRun, folder: Path | None, workspace: Path, python: str | None, as_json: bool
) -> Machine:
    """The recording, or this machine."""
    from patchctl.doctor.runtime import training_python
    from patchctl.training.preflight.live import ProbeRequest, look, workspace_state
    from patchctl.training.preflight.machine import recorded

    if folder is not None:
        return recorded(folder)
    here = dict(os.environ)
    paths = {n: run.given.paths.get(n) or here.get(p.variable) or p.default for n, p in run.paths.items()}
    start = (Path.cwd(), workspace.absolute() / run.entry.upstream / (run.entry.folder or ""))
    python = training_python(python)
    request = ProbeRequest(
        python=python,
        variables=variables_of(app, run),
        paths=paths,
        workspace=lambda: workspace_state(workspace, app.distribution, python),
        cache_folders=start,
        environment=here,
    )
    progress = app.progress(as_json)
    progress.start("preflight", None)
    try:
        return look(request, progress.note)
    finally:
        progress.finish()


def other_release(
    app: App, arguments: options.RecipeArguments, accept: Sequence[str]
) -> Callable[[Case, Sequence[Finding]], list[Finding]]:
    """What is said first of a machine whose software is in the way, where the same recipe on another release fits it."""
    from patchctl.training.preflight.checks import all_findings, blocked_by_software, fitting_release

    @cache
    def run_on(name: str) -> tuple[App, RecipeRun] | None:
        other = App(app.root, app.cache, app.color, name, app.shown)
        try:
            return other, options.RecipeBook(other).valid_run(arguments)
        except PatchctlError:  # it has no such recipe, or what the command line sets is nothing there
            return None

    def said(case: Case, findings: Sequence[Finding]) -> list[Finding]:
        def look(name: str) -> tuple[Case, list[Finding]] | None:
            found = run_on(name)
            seen = case_of(*found, case.machine, None) if found else None
            return (seen, all_findings(seen, accept)) if seen else None

        variants = app.distribution.variants.get(case.run.profile, ())
        others = [p.release for p in variants if p.release not in (None, case.run.release)]
        fitting = fitting_release(case, others, look) if blocked_by_software(findings) else None
        return [fitting] if fitting else []

    return said


def variables_of(app: App, run: RecipeRun) -> frozenset[str]:
    """The variables by name that the recipe, its paths and the practice's documents speak of."""
    practice = app.distribution.practice
    switches = [name.partition("=")[0] for name in practice.switches] if practice else []
    return frozenset([*run.environment, *run.of_each_node, *(p.variable for p in run.paths.values()), *switches])


def case_of(app: App, run: RecipeRun, machine: Machine, mean_tokens: int | None) -> Case:
    from patchctl.requirements.sets import set_of
    from patchctl.training.models import model_of, read_models
    from patchctl.training.preflight.case import MEAN_TOKENS, Case
    from patchctl.training.recipes.check import features_and_switches
    from patchctl.training.recipes.totals import mean_length

    dist = app.distribution
    return Case(
        machine=machine,
        run=run,
        wanted=dist.profile(run.profile).runtime,
        requirements=dist.requirements,
        rules=options.RecipeBook(app).recipes.rules,
        practice=dist.practice,
        switches=features_and_switches(dist, run.profile)[1],
        published=model_of(read_models(dist), run.profile, run.name),
        mean_tokens=mean_tokens or mean_length(run) or MEAN_TOKENS,
        stacks=dist.profile(run.profile).stacks,
        packages=set_of(dist, dist.profile(run.profile)),
    )


def _clear(case: Case, yes: bool) -> Sequence[str]:
    """Takes the caches away that are older than CANN, once someone says so."""
    from patchctl.terminal.progress import size_text
    from patchctl.training.preflight.caches import clear
    from patchctl.training.preflight.checks.software import old_caches

    caches = old_caches(case)
    if not caches:
        return []
    if not yes:
        if not sys.stdin.isatty():
            what = message("--clear-caches asks a question, and nobody is there to answer")
            raise WrongUse(what, hint=message("add --yes"))
        for cache in caches:
            click.echo(f"{visible_line(cache.path)}  {size_text(cache.bytes)}", err=True)
        if not click.confirm(translated(message("Take away {count} of compiled code?", count=len(caches))), err=True):
            return []
    return clear(caches)
