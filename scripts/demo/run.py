#!/usr/bin/env python3
"""The whole way on a machine without an accelerator: sources, patches, an environment, data, a model, GRPO until the reward has
risen, with a stop and a resume, and the picture. docs/demo.md says what stands for what.

What runs is what a user runs: patchctl apply, verify and install, scripts/prepare_data.py, scripts/train.sh with the recipe
demo/grpo, verl's own verl.trainer.main_ppo, scripts/plot_log.py. Everything is written below --out; the trees and the Python
environment in it are kept for the next time. --share is the same in few steps, on every release or the one of --release.
Exit status: 0; 1 where the reward has not risen, a switch had no effect, or a tree is not what the lock says; 3 where a source or
torch cannot be had; otherwise that of the step that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from patchctl.__main__ import compose
from patchctl.cli.app import App
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Release

HERE = Path(__file__).resolve().parents[2]
SCRIPTS = HERE / "scripts"
# Compiled once, for the tests and by them, and not into the trees.
COMPILED = HERE / "build" / "pycache"
# Beside the interpreter that runs this: make's own environment.
PATCHCTL = Path(sys.executable).with_name("patchctl")
REWARD = "critic/score/mean"
PROFILE, RECIPE = "demo", "grpo"
# A model that FSDP trains runs nothing of it, and it exists in git only.
SPARED = "mindspeed"
SHARE = 2
UNAVAILABLE = 3
LIMIT_S = 1800
# The mean of the last steps has to be above that of the first by this much; the score is between 0 and 1.
RISE = 0.3
SHOWN = 10
# Most processes of a run import vllm for its types alone: the engine's stand-in waits for the worker (patchctl_standins/late.py).
LATE = ",".join(
    f"{module}=patchctl_standins.late:{function}"
    for module, function in {
        "verl.trainer.ppo.v1.replay_buffer": "replay_buffer_imported",
        "verl.workers.engine_workers": "workers_imported",
        "vllm": "vllm_imported",
        "vllm_ascend.platform": "platform_imported",
        "vllm_ascend.worker.worker": "worker_imported",
    }.items()
)
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives its workers the lowest priority, starts some that are never used, and gives up on slow ones.
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_register_timeout_seconds": "600",
}
# A collection for every 700 objects takes a fifth of the time of the imports, which are most of a run.
COLLECT_LESS = "import gc; gc.set_threshold(50_000, 20, 20)"


class Failed(Exception):
    """A step that did not end well, and its exit status."""

    def __init__(self, what: str, status: int = 1) -> None:
        super().__init__(what)
        self.status = status


def main() -> int:
    compose()
    dist = App(root=HERE, cache=None, release=os.environ.get("PATCHCTL_RELEASE") or None).distribution
    args = _arguments(dist)
    # `kill` ends it as Ctrl-C does: what it started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for name in args.release:
            os.environ["PATCHCTL_RELEASE"] = name  # for every patchctl that is started, train.sh's too
            Demo((args.out or HERE / "build" / f"demo-{name}").resolve(), dist.releases[name], args).run()
    except Failed as failed:
        print(f"demo: {failed}", file=sys.stderr)
        return failed.status
    return 0


def _arguments(dist: Distribution) -> argparse.Namespace:
    taken, sets = dist.profile(PROFILE).release, [one.release for one in dist.variants[PROFILE]]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=sets, help=f"the release [what `patchctl apply` takes: {taken}]")
    parser.add_argument("--recipe", default=RECIPE, help=f"of the profile {PROFILE} [%(default)s]")
    parser.add_argument("--out", type=Path, help="[build/demo-RELEASE]")
    parser.add_argument("--share", action="store_true", help=f"every release, {SHARE} steps each, and no stop")
    parser.add_argument("--steps", type=int, default=40, help="of training [%(default)s]")
    parser.add_argument(
        "--stop", type=int, metavar="N", help=f"stop it after so many, and resume; 0: never [22; 0 but for {RECIPE}]"
    )
    parser.add_argument("--save", type=int, default=10, metavar="N", help="a checkpoint every so many [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data [%(default)s]")
    parser.add_argument("--mirror", action="append", default=[], metavar="NAME=PATH", help="as for patchctl apply")
    args = parser.parse_args()
    if args.stop and args.recipe != RECIPE:
        parser.error(f"--stop is for the recipe {RECIPE}, which train.sh starts and ends")
    if args.stop is None:
        args.stop = 22 if args.recipe == RECIPE else 0
    if args.share:
        args.steps, args.stop, args.save = SHARE, 0, SHARE
    if args.stop and not 0 < args.save <= args.stop < args.steps:
        parser.error("--save is at most --stop, and --stop less than --steps: there has to be something to resume from")
    args.release = [args.release] if args.release else sets if args.share else [taken]
    if args.out and len(args.release) > 1:
        parser.error("--out holds one release: name it with --release")
    return args


class Demo:
    """One run below `out`."""

    def __init__(self, out: Path, release: Release, args: argparse.Namespace) -> None:
        self.out, self.release, self.args = out, release, args
        self.workspace, self.venv = out / "workspace", out / "venv"
        self.run_folder = out / f"run-seed{args.seed}"
        self.python = self.venv / "bin" / "python"
        self.began = time.monotonic()

    def run(self) -> None:
        self.recipe = json.loads(self._patchctl("recipe", "show", f"{PROFILE}/{self.args.recipe}", "--json"))
        mirrors = [word for one in self.args.mirror for word in ("--mirror", one)]
        self._sources(mirrors)
        shutil.rmtree(self.run_folder, ignore_errors=True)
        self.run_folder.mkdir(parents=True)
        self._say(f"trees: patchctl apply --profile {PROFILE} --release {self.release.name}")
        self._patchctl("apply", "--profile", PROFILE, "--workspace", self.workspace, "--skip-unavailable", *mirrors)
        before = self._verified()
        self._environment(before)
        self._say("data and model")
        self._ended(
            [
                self.python,
                SCRIPTS / "prepare_data.py",
                "made-sums",
                "--out",
                self.run_folder / "data",
                "--seed",
                self.args.seed,
            ]
        )
        self._ended([self.python, SCRIPTS / "demo" / "tiny_model.py", self.run_folder / "model", self.args.seed])
        self._say(
            f"training: {self.args.steps} steps" + (f", stopped after {self.args.stop}" if self.args.stop else "")
        )
        logs = []
        if self.args.stop:
            logs.append(self._train("first", stop_after=self.args.stop))
            self._say("training: resumed")
        logs.append(self._train("second"))
        curve = self._picture(*logs)
        if self._verified() != before:
            raise Failed("the trees are others than before")
        self._report(before, curve)

    def _sources(self, mirrors: list[str]) -> None:
        """Fetched before anything is made; Failed where one is lacking that the run needs, with the places that were asked."""
        self._say(f"sources: patchctl fetch --profile {PROFILE} --release {self.release.name}")
        command = [PATCHCTL, "--root", HERE, "fetch", "--profile", PROFILE, "--skip-unavailable", "--json", *mirrors]
        asked = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=False)
        if asked.returncode != 0:
            raise Failed(f"release {self.release.name} cannot run: see above", asked.returncode)
        lacking = {one["upstream"]: one["tried"] for one in json.loads(asked.stdout)["skipped"]}
        lacking.pop(SPARED, None)
        if lacking:
            lines = [f"  {name}: {place}: {why}" for name, tried in lacking.items() for place, why in tried]
            cannot = (
                f"release {self.release.name} cannot run without {', '.join(lacking)}; --mirror NAME=PATH adds places"
            )
            raise Failed("\n".join((cannot, *lines)), UNAVAILABLE)

    def _say(self, text: str) -> None:
        print(f"== {time.monotonic() - self.began:4.0f} s  {text}", flush=True)

    def _ended(self, command: list[Any], **settings: Any) -> subprocess.CompletedProcess[str]:
        """Runs it, with what it prints in the log; Failed with the end of that."""
        words = [str(word) for word in command]
        done = subprocess.run(
            words,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            **settings,
        )
        if done.returncode != 0:
            raise Failed(f"`{' '.join(words)}` ended with {done.returncode}\n{done.stdout[-3000:]}", done.returncode)
        return done

    def _patchctl(self, *words: Any) -> str:
        return self._ended([PATCHCTL, "--root", HERE, *words]).stdout

    def _verified(self) -> dict[str, Any]:
        """Every file of every tree is read back and compared with the lock; what is there."""
        self._say("patchctl verify --workspace")
        self._patchctl("verify", "--workspace", self.workspace)
        return dict(json.loads(self._patchctl("status", "--workspace", self.workspace, "--json")))

    def _environment(self, state: dict[str, Any]) -> None:
        """Packages are lent by the environment of the behaviour tests. The trees are installed as they lie there, so that what
        is verified is what runs; they stay installed for the next time, and the stand-ins are installed anew."""
        self._say("environment: scripts/torch_env.py, patchctl install, pip install ./standins")
        find = [sys.executable, str(SCRIPTS / "torch_env.py"), "--release", self.release.name]
        found = subprocess.run(find, stdout=subprocess.PIPE, text=True, check=False)
        if found.returncode != 0:
            raise Failed("there is no CPU torch, see above", found.returncode)
        torch_python = found.stdout.strip()
        ask = [torch_python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
        lent, mark = self._ended(ask).stdout.strip(), self.venv / ".ready"
        made_of = f"{lent}\n{' '.join(tree['upstream'] for tree in state['trees'])}\n"
        if not mark.is_file() or mark.read_text(encoding="utf-8") != made_of:
            self._ended([torch_python, "-m", "venv", "--clear", self.venv])
            self._patchctl("install", "--workspace", self.workspace, "--python", self.python, "--editable")
            lend_bytecode(Path(lent), COMPILED)
        pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--force-reinstall"]
        self._ended([self.python, *pip, HERE / "standins"])
        # After the installs: with these packages in sight pip would build with them.
        (site,) = self.venv.glob("lib/python3*/site-packages")
        # transformers 5 and the vllm beside it import torchvision, whose stand-in is not installed (standins/README.md).
        imported = int(self.release.runtime["transformers"].split(".")[0]) >= 5
        folders = [lent, str(HERE / "standins" / "torchvision")] if imported else [lent]
        (site / "zz_lent.pth").write_text("".join(f"{one}\n" for one in (*folders, COLLECT_LESS)), encoding="utf-8")
        mark.write_text(made_of, encoding="utf-8")

    def _train(self, name: str, stop_after: int | None = None) -> Path:
        """Training to its end, or ended as a user ends it once so many steps are in the log."""
        log = self.run_folder / f"{name}.log"
        with log.open("wb") as output:
            training = subprocess.Popen(
                self._command(),
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                stopped = self._watch(training, log, stop_after)
            finally:
                if training.poll() is None:
                    os.killpg(training.pid, signal.SIGTERM)
                    training.wait(timeout=60)
        if training.returncode != (143 if stopped else 0):
            tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise Failed(f"the training ended with {training.returncode}\n{tail}", training.returncode or 1)
        return log

    def _command(self) -> list[str]:
        """scripts/train.sh. Where engines have devices of their own it would wait for a second machine, so what it runs is run."""
        asked = [f"trainer.total_training_steps={self.args.steps}", f"trainer.save_freq={self.args.save}"]
        if not self._size("rollout_nodes"):
            logs = str(self.run_folder / "logs")
            return [str(SCRIPTS / "train.sh"), PROFILE, self.args.recipe, "--no-preflight", "--log-dir", logs, *asked]
        parts = [
            self._patchctl("recipe", part, "--profile", PROFILE, self.args.recipe, *asked)
            for part in ("env", "command")
        ]
        return ["bash", "-euc", "\n".join(parts)]

    def _size(self, name: str) -> int:
        """Of the recipe; 0 where it has none of that name."""
        return int(self.recipe["sizes"].get(name, {"value": 0})["value"])

    def _watch(self, training: subprocess.Popen[bytes], log: Path, stop_after: int | None) -> bool:
        """Whether it was stopped; Failed when it takes too long."""
        deadline = time.monotonic() + LIMIT_S
        while training.poll() is None:
            if stop_after is not None and f"step:{stop_after} - " in log.read_text(encoding="utf-8", errors="replace"):
                training.send_signal(signal.SIGTERM)
                training.wait(timeout=120)
                return True
            if time.monotonic() > deadline:
                raise Failed(f"no end after {LIMIT_S} s: {log}")
            time.sleep(0.5)
        return False

    def _variables(self) -> dict[str, str]:
        """Nothing of the user's environment: a RAY_ADDRESS or a VLLM_ variable would make it another run."""
        folder = self.run_folder
        kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", "LANG", "USER") if name in os.environ}
        return kept | {
            "PATH": f"{self.venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PATCHCTL": str(PATCHCTL),
            "PATCHCTL_RELEASE": self.release.name,
            "PATCHCTL_NPUS": str(self._size("devices") + self._size("rollout_nodes") * self._size("rollout_devices")),
            "WORKSPACE": str(self.workspace),
            "MODEL_PATH": str(folder / "model"),
            "TRAIN_FILE": str(folder / "data" / "train.parquet"),
            "VAL_FILE": str(folder / "data" / "test.parquet"),
            "CKPTS_DIR": str(folder / "checkpoints"),
            "REWARD_PATH": str(SCRIPTS / "rewards" / "sums.py"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONPYCACHEPREFIX": str(COMPILED),
            "PATCHCTL_STANDINS_WATCH": LATE,
            **RAY,
        }

    def _picture(self, *logs: Path) -> list[float]:
        """reward.png, and the reward of every step from the log; a step that was done twice counts as it was done last."""
        self._say("picture: scripts/plot_log.py")
        whole, table = self.run_folder / "whole.log", self.run_folder / "metrics.csv"
        whole.write_bytes(b"".join(log.read_bytes() for log in logs))
        plot = [sys.executable, SCRIPTS / "plot_log.py", whole]
        self._ended([*plot, "--out", self.run_folder / "reward.png", "--csv", table])
        with table.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row.get(REWARD)]
        if len(rows) != self.args.steps:
            raise Failed(f"{table} has the reward of {len(rows)} steps, not of {self.args.steps}")
        if "skip_old_log_prob" in self.recipe["needs"]:
            check_skipped(rows)
        return [float(row[REWARD]) for row in rows]

    def _report(self, state: dict[str, Any], curve: list[float]) -> None:
        self._say("done")
        resumed = (
            f", stopped after {self.args.stop}, resumed from step {self.args.stop // self.args.save * self.args.save}"
        )
        print(
            f"\nran        {self.recipe['entry']['module']} with {PROFILE}/{self.args.recipe}:"
            f" {self.args.steps} steps{resumed * bool(self.args.stop)}"
        )
        for tree in state["trees"]:
            print(
                f"tree       {tree['upstream']:12} {tree['stack']:14} {len(tree['patches']):2} patches,"
                f" tip {tree['tip_commit'][:12]}, {tree['lock']} to the lock before and after"
            )
        print(f"features   {', '.join(self.recipe['needs'])}")
        part = max(1, min(SHOWN, len(curve) // 3))
        first, last = sum(curve[:part]) / part, sum(curve[-part:]) / part
        digest = hashlib.sha256(repr(curve).encode()).hexdigest()[:12]
        print(
            f"reward     {first:.3f} in the first {part} steps, {last:.3f} in the last {part}; seed {self.args.seed},"
            f" curve {digest}"
        )
        print(f"picture    {self.run_folder / 'reward.png'}")
        print(f"log        {self.run_folder / 'whole.log'}")
        if len(curve) >= 3 * SHOWN and last < first + RISE:
            raise Failed(f"the reward has not risen by {RISE}")


def lend_bytecode(packages: Path, cache: Path) -> None:
    """What an installer has compiled, where PYTHONPYCACHEPREFIX has it looked for: to compile torch again takes a minute of a core."""
    for folder in packages.rglob("__pycache__"):
        there = cache / folder.parent.relative_to("/")
        there.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("*.pyc"):
            with contextlib.suppress(OSError):  # there already, or on another disk: then it is compiled
                (there / file.name).hardlink_to(file)


def check_skipped(rows: list[dict[str, str]]) -> None:
    """Failed where a step took time for old log-probabilities: a pass over the same answers takes a third of what their update does."""
    for row in rows:
        took, update = (float(row.get(f"timing_s/{name}") or 0) for name in ("old_log_prob", "update_actor"))
        if took > update / 20:
            raise Failed(
                f"skip_old_log_prob was not in force: {took:.2f} s in step {row['step']}, and {update:.2f} s for its update"
            )


if __name__ == "__main__":
    sys.exit(main())
