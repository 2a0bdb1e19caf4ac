"""patchctl cluster: verify, status and apply on every node of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchctl import extension
from patchctl.cli.app import (
    App,
    flag,
    format_option,
    json_option,
    of_release,
    optional_profile,
    print_findings,
    profile_option,
    release_option,
)
from patchctl.cli.sources import Sources, source_or_bundle_options, with_options
from patchctl.errors import DONE, FINDINGS, WrongUse

if TYPE_CHECKING:
    from patchctl.cluster.facts import Verb
    from patchctl.cluster.request import ExpectedEnvironment


def _complete_recipe(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: what the extensions know."""
    names = (name for other in extension.registered() for name in other.complete_recipe)
    return [found for name in names for found in extension.load(name)(ctx, param, incomplete)]


address_option = click.option(
    "--address",
    "-a",
    default="auto",
    envvar="RAY_ADDRESS",
    show_default=True,
    metavar="A",
    help="The cluster: HOST:PORT of its head, ray://HOST:10001 from outside, or auto for the one on this machine.",
)
node_workspace_option = click.option(
    "--workspace",
    "-w",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The workspace on every node [default: each node's own PATCHCTL_WORKSPACE, else the one here, else ./workspace].",
)
_NODES = click.option(
    "--nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many nodes have to be there: with so many, dead ones beside them are no failure.",
)
_LOOKING = (
    address_option,
    node_workspace_option,
    optional_profile("The profile that every node should hold [default: what most of them hold]."),
    release_option,
    click.option(
        "--recipe",
        "-r",
        metavar="NAME",
        callback=of_release,
        shell_complete=_complete_recipe,
        help="Hold the environment against this recipe, or PROFILE/RECIPE, or RECIPE@RELEASE.",
    ),
    click.option(
        "--python",
        metavar="PY",
        help="The interpreter on every node whose packages are looked at [default: the workers' own].",
    ),
    _NODES,
)


def timeout_option(seconds: int) -> Callable[..., Any]:
    """--timeout, of one node."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=1),
        default=seconds,
        show_default=True,
        metavar="S",
        help="How long a node may take, in seconds.",
    )


def _options(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda command: with_options(command, options)


class _Verbs(click.Group):
    """The verbs of this file, and those of extensions, which may be registered after it is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._of_extensions()})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name) or self._of_extensions().get(name)

    def _of_extensions(self) -> dict[str, click.Command]:
        found = (extension.load(name) for other in extension.registered() for name in other.cluster_verbs)
        return {command.name: command for command in found}


@click.group("cluster", cls=_Verbs)
def cluster_command() -> None:
    """Say what every node of a Ray cluster holds, name the odd one, and apply to all.

    One task is pinned to each node; patchctl travels with it, so that nodes need Python and git alone. Needs ray in the
    cluster's version, and none of its CPUs or NPUs. Nothing in the cluster is started or stopped.

    \b
    patchctl cluster verify --address 10.0.0.1:6766 --profile qwen3-235b --recipe grpo --nodes 64
    patchctl cluster status --address 10.0.0.1:6766
    patchctl cluster preflight --address 10.0.0.1:6766 --profile qwen3-235b --recipe grpo
    patchctl cluster apply --address 10.0.0.1:6766 --profile qwen3-235b --bundle qwen3-235b.bundle.tar

    Exit code 1 when a node differs, is dead or does not answer; 3 when there is no cluster at the address.
    """


@cluster_command.command("verify", short_help="Read every byte on every node, and name the odd one.")
@_options(*_LOOKING, timeout_option(600), format_option("patchctl.report.cluster:ClusterOutput"))
@click.pass_obj
def verify(app: App, /, **given: Any) -> int:
    """Read every file of every tree on every node, compute the trees again, and compare the nodes with the lock.

    Compared as well: the profile, the locks of a distribution that is on the node, package versions, environment, and
    where a worker and a process spawned from it (an engine) find the patched packages. Writes nothing.

    \b
    patchctl cluster verify --address 10.0.0.1:6766
    patchctl cluster verify --address 10.0.0.1:6766 --profile qwen3-235b --recipe grpo --nodes 64 --json

    Exit code 1 when a node differs, is dead or does not answer.
    """
    return _look(app, "verify", **given)


@cluster_command.command("status", short_help="The same, trusting file times as `git status` does.")
@_options(*_LOOKING, timeout_option(120), format_option("patchctl.report.cluster:ClusterOutput"))
@click.pass_obj
def status(app: App, /, **given: Any) -> int:
    """As verify, and faster: files whose size and times are those of git's index are not read.

    Exit code 1 when a node differs, is dead or does not answer.

    \b
    Examples:
      patchctl cluster status
      patchctl cluster status --address 10.0.0.1:6766
    """
    return _look(app, "status", **given)


def _look(
    app: App,
    verb: Verb,
    *,
    address: str,
    workspace: Path | None,
    profile: str | None,
    recipe: str | None,
    python: str | None,
    nodes: int | None,
    timeout: float,
    output: str,
) -> int:
    from patchctl.cluster.compare import compare
    from patchctl.cluster.fanout import NoAnswer, joined
    from patchctl.cluster.request import looking_request, make_payload, plain_request, wanted_of
    from patchctl.findings import Shown
    from patchctl.report.cluster import cluster_output, compared_text

    dist, environment = app.distribution, _environment(app, profile, recipe)
    payload = make_payload(dist)
    wanted = wanted_of(dist, payload, environment, nodes)
    plain = plain_request(verb, dist, workspace, workspace_here(), timeout)
    request = looking_request(plain, dist, environment, python)
    progress = app.progress(output == "json")
    with joined(address) as cluster:
        members = cluster.nodes()
        progress.start(f"cluster {verb}", None)
        try:
            found = cluster.ask({n: request for n in members if n.alive}, cluster.put(payload.data), progress)
        finally:
            progress.finish()
        version = cluster.version
    compared = compare({n: found[n] if n.alive else NoAnswer("dead", n.reason) for n in members}, wanted)
    data = cluster_output(compared, address, version)
    shown = Shown(compared.report(), f"cluster.{verb}")
    print_findings(app, output, shown, data, lambda style: compared_text(compared, address, style))
    return DONE if compared.clean else FINDINGS


def _environment(app: App, profile: str | None, recipe: str | None) -> ExpectedEnvironment:
    """What an extension says of the recipe, or of all where none is named. Raises WrongUse where nothing knows recipes."""
    from patchctl.cluster.request import ExpectedEnvironment

    for name in (name for other in extension.registered() for name in other.environments):
        found: ExpectedEnvironment = extension.load(name)(app, profile, recipe)
        return found
    if recipe is not None:
        raise WrongUse("this patchctl knows no recipes")
    return ExpectedEnvironment(profile)


def workspace_here() -> Path:
    """The workspace that this machine would use: for nodes that say nothing of their own."""
    return Path(os.environ.get("PATCHCTL_WORKSPACE") or "workspace")


@cluster_command.command("apply", short_help="Put a profile's trees on every node, or on none.")
@_options(address_option, profile_option, node_workspace_option, source_or_bundle_options, _NODES, timeout_option(3600))
@click.option("--without", multiple=True, metavar="FEATURE[@UPSTREAM]", help="Leave a feature out. Repeatable.")
@flag("--skip-unavailable", "Go on without upstreams and patches whose source cannot be had; they are listed.")
@flag("--skip-unreachable", "Go on without nodes that are dead or do not answer; they are listed.")
@flag("--stash", "Keep local edits on a branch of their tree instead of stopping at them.")
@flag("--dry-run", "Build and prove everything on every node, and write nothing.")
@json_option("patchctl.report.cluster:ClusterApplyOutput")
@click.pass_obj
def apply(app: App, /, **given: Any) -> int:
    """Put the patched trees of a profile into the workspace of every node.

    Every node builds and proves everything first; then all write, or, when one of them could not, none. Nodes that share
    a workspace over a network file system are found, and one of them writes. Sources come from each node's own cache,
    from the places that --mirror and the manifests name (as the node reaches them), or out of a bundle, which is sent
    to the nodes through Ray. A node that is dead fails the run, and nothing is written, unless --nodes or
    --skip-unreachable says otherwise.

    \b
    patchctl cluster apply --address 10.0.0.1:6766 --profile qwen3-235b --mirror verl=/shared/git/verl
    patchctl cluster apply --address 10.0.0.1:6766 --profile qwen3-235b --bundle qwen3-235b.bundle.tar --dry-run

    Exit code: that of `patchctl apply` where all nodes that fail have the same one, else 1.
    """
    return _apply(app, **given)


def _apply(
    app: App,
    *,
    address: str,
    profile: str,
    workspace: Path | None,
    sources: Sources,
    nodes: int | None,
    timeout: float,
    without: tuple[str, ...],
    skip_unavailable: bool,
    skip_unreachable: bool,
    stash: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    from patchctl.cluster.deploy import deploy
    from patchctl.cluster.facts import ApplyOptions
    from patchctl.cluster.fanout import joined
    from patchctl.cluster.request import Applying, plain_request
    from patchctl.report.cluster import applied_output, deployment_text

    dist, bundle = sources.distribution, sources.bundle
    chosen = dist.profile(profile)
    remote = ApplyOptions(
        sources.source,
        _mirrors(sources),
        sources.offline,
        list(without),
        skip_unavailable,
        stash,
        bundle.sha256 if bundle else None,
        chosen.release,
    )
    with joined(address) as cluster:
        plain = replace(plain_request("look", dist, workspace, workspace_here(), timeout), profile=profile)
        sent = bundle.path.read_bytes() if bundle else None
        ask = Applying(cluster, dist, plain, remote, sent, app.progress(as_json))
        out = deploy(ask, cluster.nodes(), expected=nodes, dry_run=dry_run, skip_unreachable=skip_unreachable)
        data = applied_output(out, address, cluster.version, profile, dry_run=dry_run)
    app.emit("cluster.apply", data, lambda style: deployment_text(out, profile, style, dry_run=dry_run), as_json)
    return out.exit_code


def _mirrors(sources: Sources) -> dict[str, list[str]]:
    """--mirror for every node; a folder of this machine by its full path, since a task starts elsewhere."""
    given = sources.given().items()
    return {name: [str(Path(u).absolute()) if Path(u).exists() else u for u in urls] for name, urls in given}
