"""Starts verl's entry module for a shrunk recipe: models and data, the environment, the processes and what remains of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memory import resident_bytes
from releases import OLDEST, OfRelease
from shrunk import REPO, TABLE, Shrunk

from patchctl.training.recipes.read import Recipes
from patchctl.training.recipes.resolve import RecipeRun
from patchctl.training.recipes.shell import hydra_value

sys.path.insert(0, str(REPO / "tests"))

from environment import COMPILED, NOBODYS
from mbridge_source import check_out, commit_named
from pins import distribution, index_version

HERE = Path(__file__).parent
STANDINS = REPO / "standins"
UPSTREAMS = ("verl", "vllm", "vllm-ascend", "megatron-lm", "mindspeed")
# Python's collector takes a fifth of the time of the imports, which are half of a run, six processes at once.
SITE = "import gc\ngc.set_threshold(50_000, 20, 20)\nimport patchctl_standins.start\n"
# Ray starts no worker before it is asked for one, and waits for those that are slow to start on a busy machine.
FIXED = NOBODYS | {
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    # Ray's workers have the lowest priority otherwise, and whatever else runs goes first.
    "RAY_worker_niceness": "0",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_health_check_failure_threshold": "60",
    "RAY_gcs_server_request_timeout_seconds": "300",
}
LOOK_S = 0.5
GRACE_S = 10.0


@dataclass(frozen=True)
class Place:
    """Where a session of runs keeps its things: trees of a release, an interpreter with torch, and a folder of its own; and
    what comes before the interpreter's packages."""

    trees: Path
    python: Path
    folder: Path
    of: OfRelease = OLDEST
    packages: tuple[Path, ...] = ()

    def environment(self, **more: str) -> dict[str, str]:
        site = self.folder / "site"
        if not site.is_dir():
            _make_site(site, self.trees, self.of)
        (site / "sitecustomize.py").write_text(SITE)
        path = [
            site,
            HERE,
            *self.packages,
            *(self.trees / name for name in UPSTREAMS),
            *(STANDINS / name for name in self.of.standins),
        ]
        return {
            **FIXED,
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.folder),
            # What behaviour tests have compiled is not compiled again, by several processes at once.
            "PYTHONPYCACHEPREFIX": str(COMPILED),
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "WORKSPACE": str(self.trees),
            # Below 16 devices vllm-ascend exchanges experts' tokens there by operators that gloo has.
            "PATCHCTL_NPU": "A2",
            **self.of.variables,
            **more,
        }


@dataclass(frozen=True)
class Ended:
    """How a process ended: None when its time was over."""

    code: int | None
    seconds: float
    log: Path
    peak_bytes: int

    def last_error(self) -> str:
        """The last line that names an error, for people."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if _names_error(line)]
        return lines[-1].rpartition("m ")[2].strip()[:300] if lines else ""


def place_of(place: Place, run: RecipeRun) -> Place:
    """The place with the packages that this recipe wants from elsewhere than the package index; raises LookupError where
    they cannot be had."""
    if not (commit := commit_named(run.limits)):
        return place
    folder = place.folder / f"mbridge-{commit[:12]}"
    if not folder.is_dir():
        check_out(commit, folder)
    return replace(place, packages=(folder,))


def _names_error(line: str) -> bool:
    head = line.strip().partition(":")[0]
    return head.endswith(("Error", "Exception")) and " " not in head


def _make_site(site: Path, trees: Path, of: OfRelease) -> None:
    """What `pip install ./standins` would put into the environment, and metadata of vllm and vllm-ascend."""
    sys.path.insert(0, str(STANDINS / "patchctl_standins"))
    from patchctl_standins.made import entry_points

    site.mkdir(parents=True)
    stacks = distribution().release(of.name).stacks
    version = {name: index_version(distribution().stack(name, stacks[name])) for name in ("vllm", "vllm-ascend")}
    versions = {
        "vllm": f"{version['vllm']}+cpu",
        "vllm_ascend": version["vllm-ascend"],
        "patchctl_standins": "1",
    }
    points = {
        "vllm_ascend": entry_points(trees / "vllm-ascend" / "setup.py"),
        "patchctl_standins": "[torch.backends]\ntorch_npu = torch_npu:_autoload\n",
    }
    for name, one in versions.items():
        info = site / f"{name}-{one}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {one}\n")
        if name in points:
            (info / "entry_points.txt").write_text(points[name])


def paths(place: Place, run: RecipeRun, model: str | None = None) -> dict[str, str]:
    """The files of a recipe: a tiny model, of its own profile or another one's, made-up data, a converted checkpoint where it wants
    one, and a reward."""
    folder = place.folder / run.title.replace("/", "-")
    source = run.data["train"].data_source[0]
    answer = "A" if source == "cflue_mcq" else "1"
    made = folder / "made"
    if not (made / "train.parquet").is_file():
        made.mkdir(parents=True, exist_ok=True)
        job = TABLE["models"][model or run.profile] | {"data_source": source, "answer": answer}
        finished(place, [str(HERE / "made_model.py"), str(made), json.dumps(job)], folder / "made.log", 120)
    found = {
        "model": str(made / "model"),
        "train": str(made / "train.parquet"),
        "validation": str(made / "train.parquet"),
        "checkpoints": str(folder / "checkpoints"),
        "reward": str(REPO / "scripts/rewards" / ("choices.py" if source == "cflue_mcq" else "deepscaler.py")),
        "mcore_weights": str(folder / "mcore"),
    }
    if "mcore_weights" in run.paths and not (folder / "mcore" / "metadata.json").is_file():
        script = place.trees / "verl/scripts/converter_hf_to_mcore.py"
        command = [str(script), "--hf_model_path", found["model"], "--output_path", found["mcore_weights"]]
        finished(place, [*command, "--grouped_experts"], folder / "convert.log", 200)
    return found


def finished(place: Place, arguments: Sequence[str], log: Path, timeout: float) -> str:
    """The last line of a Python program; raises RuntimeError with the end of its output when it fails."""
    ended = started([str(place.python), *arguments], place.environment(), place.folder, log, timeout)
    text = log.read_text(errors="replace")
    if ended.code != 0:
        raise RuntimeError(f"{arguments[0]} ended with {ended.code}\n{text[-3000:]}")
    return text.strip().splitlines()[-1] if text.strip() else ""


def train(
    place: Place,
    one: Shrunk,
    known: Recipes,
    name: str,
    timeout: float,
    samples: Path | None = None,
    looked_into: bool = False,
) -> Ended:
    """One run of the entry module; the recipe's environment, the table's sizes, and what watches. Training is given the answers
    in `samples`, where they are named; updates are `looked_into` by `held`."""
    run = one.run(known)
    folder = place.folder / run.title.replace("/", "-") / name
    folder.mkdir(parents=True, exist_ok=True)
    recipe = {key: _path_or(run, value) for key, value in run.environment.items()}
    watched = {
        "PATCHCTL_NPUS": str(one.devices(known)),
        "RECIPE_WATCHED": str(folder / "watched"),
        "PATCHCTL_STANDINS_WATCH": ",".join(place.of.watched),
        "RAY_TMPDIR": "/tmp",
        **one.variables,
    }
    if samples:
        watched["RECIPE_SAMPLES"] = str(samples)
    if looked_into:
        watched["RECIPE_LOOKED_INTO"] = "1"
    overrides = [f"{key}={hydra_value(_path_or(run, value))}" for key, value in run.overrides.items()]
    command = [str(place.python), "-m", run.entry.module, f"--config-name={run.entry.config}", *overrides]
    command.append(f"hydra.run.dir={folder / 'hydra'}")
    environment = place.environment(**{k: v for k, v in recipe.items() if v}, **watched)
    cwd = place.trees / run.entry.upstream / (run.entry.folder or ".")
    return started(command, environment, cwd, folder / "log.txt", timeout)


def _path_or(run: RecipeRun, value: object) -> str:
    path = value.path  # type: ignore[attr-defined]
    return (run.path(path) or "") if path else value.value  # type: ignore[attr-defined]


def started(command: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path, timeout: float) -> Ended:
    """Runs it in a session of its own, of which nothing is left afterwards."""
    begun = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code, peak = _looked_on(process, begun + timeout)
    return Ended(code, time.monotonic() - begun, log, peak)


def _looked_on(process: subprocess.Popen[bytes], deadline: float) -> tuple[int | None, int]:
    """Its exit status, None when the time was over, and the most memory that it took with its children."""
    peak = 0
    try:
        while process.poll() is None and time.monotonic() < deadline:
            peak = max(peak, resident_bytes(process.pid))
            time.sleep(LOOK_S)
        code = process.poll()
        if code is None:
            process.send_signal(signal.SIGTERM)  # verl's driver takes Ray's processes with it
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return code, peak
