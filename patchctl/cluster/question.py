"""What the nodes are asked, and what their answers are held against: from the distribution, a profile and a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from patchctl.cluster.compare import Wanted
from patchctl.cluster.facts import ApplyOptions, Request, Verb
from patchctl.cluster.fanout import Answer, Cluster, Node, own_paths
from patchctl.cluster.kit import Kit, make_kit
from patchctl.manifest.distribution import Distribution
from patchctl.terminal.progress import Progress
from patchctl.training.preflight.live import SECRET
from patchctl.training.recipes.conditions import names_in
from patchctl.training.recipes.read import SHARED, Recipes
from patchctl.training.recipes.resolve import Run

# What decides which code a process finds, whatever a recipe says.
_ALWAYS = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")
_ENV = "env."


def plain_request(verb: Verb, dist: Distribution, workspace: Path | None, fallback: Path, seconds: float) -> Request:
    """A question without details: `look`, and what `apply` adds its options to."""
    named = str(workspace.absolute()) if workspace is not None else None
    root = str(dist.root)
    return Request(verb, named, str(fallback.absolute()), None, root, None, seconds, drop=own_paths())


def looking_request(
    plain: Request, dist: Distribution, recipes: Recipes, profile: str | None, run: Run | None, python: str | None
) -> Request:
    """The question of `status` and `verify`."""
    variables = variable_names(recipes, profile, run)
    names = {p: u.sdist or name for name, u in dist.upstreams.items() for p in u.packages}
    return Request(
        plain.verb, plain.workspace, plain.fallback, profile, plain.root, python, plain.seconds, names=names,
        packages={name: dict(u.packages) for name, u in dist.upstreams.items() if u.packages},
        requirements={n: (r.distribution or n) if r.kind == "python" else None for n, r in dist.requirements.items()}
        | ({"python": None} if "python" not in dist.requirements else {}),
        variables=variables, secret=[v for v in variables if SECRET.search(v)],
        start=[run.entry.upstream, run.entry.folder or "."] if run else None, drop=plain.drop,
    )  # fmt: skip


def variable_names(recipes: Recipes, profile: str | None, run: Run | None) -> list[str]:
    """The variables that the rules name, and the recipe; without one, every recipe of the profile."""
    names: dict[str, None] = dict.fromkeys(_ALWAYS)
    if run is not None:
        names.update(dict.fromkeys([*run.environment, *run.of_each_node]))
    else:
        for (folder, _), loaded in recipes.files.items():
            if folder in (SHARED, profile):
                names.update(dict.fromkeys(loaded.value.environment))
    for rule in recipes.rules.value.rules.values() if recipes.rules else ():
        for condition in (rule.when, rule.must):
            found = names_in(condition) if condition is not None else ()
            names.update(dict.fromkeys(n.removeprefix(_ENV) for n in found if n.startswith(_ENV)))
    return list(names)


def wanted_of(dist: Distribution, kit: Kit, profile: str | None, run: Run | None, nodes: int | None) -> Wanted:
    """What answers are held against. A recipe's path is each machine's own, and is compared among the nodes. Raises WrongUse."""
    if profile is not None:
        dist.profile(profile)
    environment = {n: v.value for n, v in run.environment.items() if v.path is None} if run else {}
    return Wanted(
        dist, kit.distribution_digest, profile, nodes, environment,
        dict(run.of_each_node) if run else {},
    )  # fmt: skip


class Applying:
    """Asks for the parts of an `apply`: one question for all nodes, the kit and the bundle put into the object store once."""

    def __init__(
        self, cluster: Cluster, dist: Distribution, plain: Request, options: ApplyOptions, bundle: bytes | None,
        progress: Progress,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._request = plain
        self._options = options
        self._progress = progress
        self._kit: Any = cluster.put(make_kit(dist).data)
        self._bundle: Any = cluster.put(bundle) if bundle is not None else None

    def __call__(self, verb: Verb, nodes: Sequence[Node]) -> Mapping[Node, Answer]:
        writes = verb in ("preview", "apply")
        request = replace(self._request, verb=verb, apply=self._options if writes else None)
        self._progress.start(f"cluster {verb}", None)
        try:
            bundle = self._bundle if writes else None
            return self._cluster.ask(dict.fromkeys(nodes, request), self._kit, self._progress, bundle=bundle)
        finally:
            self._progress.finish()
