"""The `upstream` fixture: runs a probe on upstream code, under the interpreter that has torch."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from environment import COMPILED, NOBODYS
from forks import FORKS, OF_A_RANK, Forks, beginning
from processes import Finished, free_port, run_group
from trees import Trees

from patchctl.manifest.series import SHARED as SHARED_BY_STACKS
from patchctl.manifest.types import Stack
from patchctl.training.recipes.conditions import version_of, within

REPO = Path(__file__).resolve().parents[2]
PATCHES, BEHAVIOUR = REPO / "patches", REPO / "tests" / "behaviour"
# Modules that tests or probes of several features use.
SHARED = sorted(folder for folder in BEHAVIOUR.iterdir() if any(folder.glob("*.py")))
STANDINS = REPO / "standins"
sys.path.insert(0, str(STANDINS / "patchctl_standins"))

from patchctl_standins.made import MADE  # noqa: E402  (found through the line above)

TORCH_PYTHON = "PATCHCTL_TORCH_PYTHON"
# `patchctl prove` makes it for one run, and empty: what Python compiled and vllm found of its models, by the trees' own folders.
PROOF_CACHE = os.environ.get("PATCHCTL_PROOF_CACHE")
# What vllm found of its models, each in a process of its own, by the digest of the model's file: 11 CPU seconds a model.
MODELS = REPO / "build" / "modelinfos"
DEFAULT_TIMEOUT_S = 120.0
# A test's limit is for a quiet machine and there to end what hangs: under a load of eight a probe takes three times as long.
PATIENCE = 3
# What a probe is forked with: modules that it imports anyway, and that no stand-in and no tree changes. With those of vllm and verl an
# engine starts in half the time. transformers and datasets look for devices and for torchvision as they are imported: they are the probe's own.
PRELOADED = ("torch", "torch.distributed", "numpy")
PRELOADED_FOR = {"vllm", "verl"}
PRELOADED_BESIDES = (
    "torch._inductor",
    "torch._inductor.lowering",
    "torch.distributed.checkpoint.state_dict",
    "aiohttp",
    "fastapi",
    "gguf",
    "hydra",
    "numba",
    "openai.types.responses",
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "pandas",
    "ray",
    "scipy.signal",
    "tensordict",
)

# Processes that have begun as a probe begins, kept for its next run: each is an engine's imports in memory.
BEGUN = 2

# Everything a probe sees, besides PATH, HOME, PYTHONPATH and what the test adds.
FIXED_ENVIRONMENT = NOBODYS | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "VLLM_LOGGING_LEVEL": "ERROR"}


def shared_place(path: Path) -> Path:
    """Where the stacks of an upstream share what one of them has at a path: below shared/ in place of the stack's folder."""
    if not path.is_relative_to(PATCHES):
        return path
    upstream, _, *rest = path.relative_to(PATCHES).parts
    return PATCHES.joinpath(upstream, SHARED_BY_STACKS, *rest)


class Upstream:
    """What a behaviour test is given: upstream trees, and a way to run a probe on them."""

    def __init__(self, trees: Trees, scratch: Path) -> None:
        self._trees = trees
        self._scratch = scratch
        self._runs = 0
        # Of the test file that runs, as (upstream, feature); None in a test that is about no feature.
        self.feature: tuple[str, str] | None = None
        # Where the test file that runs lies.
        self.folder = BEHAVIOUR
        # Why the tests of the file that runs are for other trees; None if they are for these.
        self.elsewhere: str | None = None
        self._scripts: set[str] = set()
        self._forks: dict[tuple[str, ...], Forks] = {}
        self._begun: dict[tuple[object, ...], Forks | None] = {}

    def tree(self, name: str) -> Path:
        """The folder of the upstream's tree; the test is skipped, with the reason, when it cannot be had."""
        if self.elsewhere:
            pytest.skip(self.elsewhere)
        tree = self._trees.path(name)
        if self.feature and (reason := self._trees.lacks(*self.feature)):
            pytest.skip(reason)
        return tree

    def stack(self, name: str) -> Stack:
        """The stack that the upstream's tree is of."""
        return self._trees.stack(name)

    def skip_unless(self, name: str, limits: str) -> None:
        """Skips the test where the upstream's tree is of a version that is not within the limits."""
        stack = self.stack(name)
        if not within(version_of(stack), limits):
            pytest.skip(f"the trees have {name} {stack.name}; this is of {name} {limits}")

    def lacks(self, upstream: str, feature: str) -> str | None:
        """Why a feature is not in the upstream's tree, None if it is; for tests of what several features make."""
        return self._trees.lacks(upstream, feature)

    def run(
        self,
        script: str,
        *args: object,
        need: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        standins: Sequence[str] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
        procs: int = 1,
    ) -> Any:
        """Runs a probe (a file beside the test, a path from the repository's root, or either where stacks share it) and returns
        the JSON value on its last line of stdout.

        `need` names the upstreams whose trees go on PYTHONPATH, in that order; `standins` names folders of `standins/`
        or what `patchctl_standins.made` makes. `timeout` is in seconds; a process is ended after PATIENCE times as long. With
        `procs` > 1 that many processes start with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT,
        and a list (by rank) is returned.
        Raises AssertionError, with the end of the output, when a process fails or the time is over.
        """
        python = torch_python()
        timeout *= PATIENCE
        for name in need:
            self.tree(name)
        cwd = self._new_folder()
        # verl names sockets in /tmp by Ray's job: two runs at a time would take each other's weights.
        job = {"VERL_RAY_JOB_ID": f"{os.getpid()}-{cwd.name}"}
        base = clean_environment(python, self._trees, need, standins, self._scratch) | job | dict(env or {})
        places = [self.folder / script, REPO / script]
        file = next(filter(Path.is_file, [*places, *map(shared_place, places)]), places[-1])
        if file.is_relative_to(PATCHES):  # a script finds what lies beside it by itself
            of_feature = [
                one for one in (self.folder, shared_place(self.folder)) if one.is_relative_to(PATCHES) and one.is_dir()
            ]
            beside = [one for one in of_feature if one != file.parent]
            base["PYTHONPATH"] = os.pathsep.join(filter(None, [base["PYTHONPATH"], *map(str, [*beside, *SHARED])]))
        environments = [base] if procs == 1 else [base | ranks for ranks in rank_variables(procs)]
        self._scripts.add(file.relative_to(REPO).as_posix())
        command = [str(python), str(file), *map(str, args)]
        results = run_group(command, environments, cwd, timeout, self._forks_of(command, base, need, standins))
        values = [_value(script, rank, result, timeout) for rank, result in _failures_first(results)]
        return values[0] if procs == 1 else values

    def _forks_of(
        self, command: Sequence[str], environment: Mapping[str, str], need: Sequence[str], standins: Sequence[str]
    ) -> Forks | None:
        """A process that has begun as the probe does, for its runs to be forked from; or that has imported what such probes begin with."""
        if not FORKS:
            return None
        # What stands on no stand-in may be about doing without torch.
        preload = (*PRELOADED, *(PRELOADED_BESIDES if PRELOADED_FOR & set(need) else ())) if standins else ()
        if preload not in self._forks:
            settings = clean_environment(Path(command[0]), self._trees, (), (), self._scratch) | {"PYTHONPATH": ""}
            self._forks[preload] = Forks(command[0], settings, preload)
        forks = self._forks[preload]
        return self._begun_as(command, environment, forks) or forks if forks.fits(environment) else None

    def _begun_as(self, command: Sequence[str], environment: Mapping[str, str], forks: Forks) -> Forks | None:
        """One that has begun as the probe does in this environment, made now or for a run before; None where that cannot be shared."""
        program = command[1:]
        _, _, read = beginning(Path(program[0]).read_text(encoding="utf-8"))
        common = sorted((name, value) for name, value in environment.items() if name not in OF_A_RANK)
        key = (program[0], *(tuple(program[at : at + 1]) for at in read), *common)
        if key not in self._begun:
            while len(self._begun) >= BEGUN:
                if ended := self._begun.pop(next(iter(self._begun))):
                    ended.close()
            self._begun[key] = forks.ahead(program, environment, self._scratch)
        return self._begun[key]

    def used(self) -> set[str]:
        """The probes that ran, and what they imported of tests and stand-ins (Python compiled it below `scratch`)."""
        compiled = self._scratch / "pycache"
        sources = {
            Path("/", file.relative_to(compiled)).with_name(f"{file.name.partition('.')[0]}.py")
            for file in compiled.rglob("*.pyc")
        }
        ours = (REPO / "tests", PATCHES, STANDINS)
        below = {file.relative_to(REPO).as_posix() for file in sources if any(map(file.is_relative_to, ours))}
        return self._scripts | below

    def _new_folder(self) -> Path:
        self._runs += 1
        folder = self._scratch / f"run{self._runs}"
        folder.mkdir()
        return folder


# Python's collector takes a fifth of an import of vllm. Made stand-ins may have a sitecustomize of their own.
SITE = """
import gc, importlib.util, sys
from importlib.machinery import PathFinder
gc.set_threshold(50_000, 20, 20)
if found := PathFinder.find_spec("sitecustomize", sys.path[1:]):
    found.loader.exec_module(importlib.util.module_from_spec(found))
"""


def clean_environment(
    python: Path, trees: Trees, need: Sequence[str], standins: Sequence[str], scratch: Path
) -> dict[str, str]:
    """The whole environment of a probe: nothing is inherited but PATH. What has to be made is made under `scratch`."""
    home = scratch / "home"
    home.mkdir(exist_ok=True)
    needed = [trees.path(name) for name in need]
    models = home / ".cache" / "vllm" / "modelinfos"
    if FORKS:  # a proof takes nothing from a run before it
        _link(models, MODELS)
    elif PROOF_CACHE:  # and within itself what was found in these very trees
        for tree in needed:
            _link(scratch / "pycache" / tree.relative_to("/"), Path(PROOF_CACHE, *tree.parts[1:]))
        on = hashlib.sha256("\n".join([*map(str, needed), *standins]).encode()).hexdigest()
        _link(models, Path(PROOF_CACHE, "modelinfos", on))
    # Made stand-ins hold distribution metadata only, so they shadow no module; they come first because vllm's sdist
    # carries an egg-info of its own, without the "+cpu" that vllm's platform detection reads.
    made = [MADE[name](scratch / "made" / name, trees) for name in standins if name in MADE]
    folders = [_standin_folder(name) for name in standins if name not in MADE]
    site = scratch / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(SITE)
    return FIXED_ENVIRONMENT | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "HOME": str(home),
        # Compiled once a session and not beside the sources: it halves a probe that imports vllm.
        "PYTHONPYCACHEPREFIX": str(_pycache(python, needed if FORKS else (), scratch / "pycache")),
        "PYTHONPATH": os.pathsep.join(map(str, [site, *made, *needed, *folders])),
    }


def _pycache(python: Path, trees: Sequence[Path], folder: Path) -> Path:
    """`folder`, where Python is to keep what it compiles, with the part that the interpreter's packages have in every session, and that
    of trees that stay."""
    kept = [tree for tree in trees if tree.is_relative_to(REPO / "build")]
    for home in {python.parent.parent, python.resolve().parent.parent, *kept}:
        _link(folder / home.relative_to("/"), COMPILED / home.relative_to("/"))
    return folder


def _link(link: Path, kept: Path) -> None:
    """Let what is written into the folder `link` be kept in `kept`."""
    kept.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(kept)


def torch_python() -> Path:
    """The interpreter that has torch, from PATCHCTL_TORCH_PYTHON; without it the test is skipped."""
    setting = os.environ.get(TORCH_PYTHON)
    if not setting:
        pytest.skip(f"{TORCH_PYTHON} is not set: it names a Python 3.11 that has a CPU torch")
    # Not resolved: a virtual environment's python is a link, and what it links to does not see the environment.
    python = Path(setting).absolute()
    if not os.access(python, os.X_OK):
        pytest.fail(f"{TORCH_PYTHON}={setting}: no such executable")
    return python


def _standin_folder(name: str) -> Path:
    folder = STANDINS / name
    if not folder.is_dir():
        known = sorted([*MADE, *(path.name for path in STANDINS.iterdir() if path.is_dir())])
        raise LookupError(f"no stand-in {name!r}; there are: {', '.join(known)}")
    return folder


def rank_variables(procs: int) -> list[dict[str, str]]:
    port = str(free_port())
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(procs),
            "LOCAL_WORLD_SIZE": str(procs),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank in range(procs)
    ]


def _failures_first(results: Sequence[Finished]) -> list[tuple[int, Finished]]:
    """By rank, unless one failed: then the rank that ended by itself comes before those killed waiting for it."""
    ranked = list(enumerate(results))
    if all(result.returncode == 0 for result in results):
        return ranked
    return sorted(ranked, key=lambda one: (not one[1].returncode, one[1].returncode == 0))


def _value(script: str, rank: int, result: Finished, timeout: float) -> Any:
    if result.returncode is None:
        limit = f"{result.seconds:.0f} s of {timeout:.0f} s"
        raise AssertionError(f"{script} (rank {rank}) was killed after {limit}\n{result.tail()}")
    if result.returncode != 0:
        raise AssertionError(f"{script} (rank {rank}) ended with {result.returncode}\n{result.tail()}")
    lines = result.stdout.strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        raise AssertionError(f"{script} (rank {rank}): the last line of stdout is no JSON\n{result.tail()}") from None
