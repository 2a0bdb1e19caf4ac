"""`patchctl cluster preflight`, and what a recipe asks of the environment of every node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from patchctl.cli.app import App, format_option, print_findings
from patchctl.cli.cluster_verb import address_option, node_workspace_option, timeout_option, workspace_here
from patchctl.cluster.request import ExpectedEnvironment, make_payload, plain_request
from patchctl.errors import DONE, FINDINGS
from patchctl.training.recipes.conditions import names_of
from patchctl.training.recipes.read import SHARED, Recipes
from patchctl.training.recipes.resolve import RecipeRun
from patchctl.training.verbs import options

_ENV = "env."


@click.command("preflight", short_help="Look whether every node can run a recipe, and name the odd one.")
@address_option
@options.profile_of_recipe
@options.recipe_option
@options.recipe_overrides
@node_workspace_option
@click.option("--python", metavar="PY", help="The Python of training on every node [default: the workers' own].")
@click.option("--accept", multiple=True, metavar="NAME", help="Go on in spite of a finding, by its name. Repeatable.")
@timeout_option(300)
@format_option("patchctl.training.report.preflight:ReadinessOutput")
@click.pass_obj
def preflight(
    app: App,
    address: str,
    arguments: options.RecipeArguments,
    workspace: Path | None,
    python: str | None,
    accept: tuple[str, ...],
    timeout: float,
    output: str,
) -> int:
    """Run `patchctl preflight` on every node of a Ray cluster, and compare the nodes with each other.

    Each node is looked at with the limits and variables of its raylet, which the workers of a training inherit. Beside the
    findings of each, what one node has otherwise than most: driver, packages, TLS, the model's files, MASTER_ADDR, ...

    \b
    Examples:
      patchctl cluster preflight --address 10.0.0.1:6766 -p qwen3-235b -r grpo --nodes 8
      patchctl cluster preflight --address auto -p qwen3-32b -r gspo

    Exit code 1 when a node is not ready, differs in what has to be alike, or does not answer.
    """
    from patchctl.cluster.facts import MachineRequest
    from patchctl.cluster.fanout import NoAnswer, joined
    from patchctl.findings import Shown
    from patchctl.training.preflight.readiness import readiness
    from patchctl.training.report.preflight import readiness_output, readiness_text
    from patchctl.training.verbs.preflight import case_of, other_release, variables_of

    run = options.RecipeBook(app).valid_run(arguments)
    dist = app.distribution
    plain = plain_request("probe", dist, workspace, workspace_here(), timeout)
    paths = {n: [run.given.paths.get(n), p.variable, p.default] for n, p in run.paths.items()}
    start = [run.entry.upstream, *((run.entry.folder,) if run.entry.folder else ())]
    request = replace(plain, python=python, machine=MachineRequest(sorted(variables_of(app, run)), paths, start))
    progress = app.progress(output == "json")
    with joined(address) as cluster:
        nodes = cluster.nodes()
        progress.start("cluster preflight", None)
        try:
            found = cluster.ask({n: request for n in nodes if n.alive}, cluster.put(make_payload(dist).data), progress)
        finally:
            progress.finish()
        version = cluster.version
    answers = {n: found[n] if n.alive else NoAnswer("dead", n.reason) for n in nodes}
    wanted = run.machines
    first = other_release(app, arguments, accept)
    outcome = readiness(answers, lambda machine: case_of(app, run, machine, None), accept, wanted, first)
    data = readiness_output(outcome, run, address, version)
    shown = Shown(outcome.report(), "cluster.preflight")
    print_findings(app, output, shown, data, lambda style: readiness_text(outcome, run, address, style))
    return DONE if outcome.ready else FINDINGS


def environment_of_recipe(app: App, profile: str | None, recipe: str | None) -> ExpectedEnvironment:
    """A recipe's environment; without one, the names of all variables that matter in the profile. A path of a recipe is each
    machine's own, and is compared among the nodes. Raises WrongUse, InvalidManifest, BadManifest."""
    book = options.RecipeBook(app)
    if recipe is None:
        return ExpectedEnvironment(profile, tuple(variable_names(book.recipes, profile, None)))
    run = book.valid_run(options.RecipeArguments(profile, recipe))
    return ExpectedEnvironment(
        run.profile,
        tuple(variable_names(book.recipes, run.profile, run)),
        {n: v.value for n, v in run.environment.items() if v.path is None},
        dict(run.of_each_node),
        (run.entry.upstream, run.entry.folder or "."),
    )


def variable_names(recipes: Recipes, profile: str | None, run: RecipeRun | None) -> list[str]:
    """The variables that the rules name, and the recipe; without one, every recipe of the profile."""
    names = [*run.environment, *run.of_each_node] if run else []
    for (folder, _), loaded in recipes.files.items() if run is None else ():
        names += loaded.value.environment if folder.rpartition("/")[2] in (SHARED, profile) else ()
    for rule in recipes.rules.value.rules.values() if recipes.rules else ():
        names += [name.removeprefix(_ENV) for name in names_of(rule) if name.startswith(_ENV)]
    return list(dict.fromkeys(names))
