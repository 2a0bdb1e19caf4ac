#!/usr/bin/env python3
"""The trainer's half of a GRPO run on a GPU: verl's trainer, FSDP2 engine and skip_old_log_prob, with Hugging Face's rollout.

Looks for an interpreter with a torch that sees a GPU, and for what verl imports beside it; nothing is installed. The same program
runs with --device cpu. docs/demo.md says what it shows. Exit status: 0, also where there is no GPU and none was asked for; 1 where
something that has to be equal is not; 2 wrong use; 3 no interpreter that can run it; otherwise that of the step that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from patchctl.__main__ import compose
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Release

HERE = Path(__file__).resolve().parents[2]
SCRIPTS = HERE / "scripts"
NONE = 3
# The trainer that the program drives: a tree without it is of another release.
TRAINER = Path("verl", "trainer", "ppo", "v1", "trainer_sync.py")
PROFILE = "demo"


def _release() -> Release:
    """Return the newest release."""
    compose()
    return next(iter(Distribution.load(HERE).releases.values()))


RELEASE = _release()
# Columns, and what goes with them; 0.6b has those of Qwen3-0.6B.
SIZES = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
    "small": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
    },
    "0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
# What verl imports for it that comes neither with torch nor with another of them.
NEEDED = [
    "transformers",
    "tensordict",
    "transfer_queue",
    "ray",
    "hydra",
    "omegaconf",
    "datasets",
    "torchdata",
    "codetiming",
    "peft",
    "accelerate",
    "pandas",
    "pyarrow",
]
TRANSFORMERS = RELEASE.runtime["transformers"].split(".")[0]
PROBE = f"""
import importlib.metadata, importlib.util, json, torch
lacks = [name for name in {NEEDED} if not importlib.util.find_spec(name)]
if "transformers" not in lacks and (have := importlib.metadata.version("transformers")).split(".")[0] != "{TRANSFORMERS}":
    lacks.append(f"transformers {TRANSFORMERS} (this is {{have}})")
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({{"torch": torch.__version__, "gpu": gpu, "lacks": lacks}}))
"""


def main() -> int:
    args = _arguments()
    python, looked = _find(args)
    if python is None:
        on_cpu = args.device == "cpu"
        skipped = args.device == "auto" and not any("lacks" in one for one in looked)
        needs = "a torch" if on_cpu else "a torch that sees a GPU"
        other = "scripts/torch_env.py makes one" if on_cpu else "--device cpu needs no GPU"
        print(
            f"demo-gpu{' skipped' * skipped}: no Python has {needs} and what verl needs; looked at {'; '.join(looked)}."
            f" PATCHCTL_TORCH_PYTHON names another; {other}",
            file=sys.stdout if skipped else sys.stderr,
        )
        return 0 if skipped else NONE
    print(f"demo-gpu: {looked[-1]}", flush=True)
    try:
        return _run(python, args)
    except subprocess.CalledProcessError as failed:
        print(f"demo-gpu: `{' '.join(map(str, failed.cmd))}` ended with {failed.returncode}", file=sys.stderr)
        return failed.returncode if failed.returncode > 0 else 128 - failed.returncode


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="auto: a GPU, or nothing; cuda: an error where there is none [%(default)s]",
    )
    parser.add_argument(
        "--python",
        help="the interpreter [PATCHCTL_TORCH_PYTHON, python3 and its versions, .venv-ENVIRONMENT of the release]",
    )
    parser.add_argument(
        "--tree", type=Path, help=f"a patched tree of verl of {RELEASE.name} [applied into OUT/workspace]"
    )
    parser.add_argument("--mirror", action="append", default=[], metavar="NAME=PATH", help="as for patchctl apply")
    parser.add_argument("--out", type=Path, default=HERE / "build" / "demo-gpu", help="[build/demo-gpu]")
    parser.add_argument("--size", choices=SIZES, help="of the model [small on a GPU, tiny on a CPU]")
    parser.add_argument("--vocabulary", type=int, default=16, help="of the model; the sums have 16 [%(default)s]")
    parser.add_argument("--steps", type=int, default=30, help="of training, each way [%(default)s]")
    parser.add_argument("--prompts", type=int, default=32, help="sums a step [%(default)s]")
    parser.add_argument("--samples", type=int, default=16, help="answers to each [%(default)s]")
    parser.add_argument("--answer", type=int, default=4, help="the most tokens of one [%(default)s]")
    parser.add_argument("--micro", type=int, default=256, help="answers in a micro-batch [%(default)s]")
    parser.add_argument("--lr", type=float, help="[0.2 over the columns]")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.tree and not (args.tree / TRAINER).is_file():
        apply = f"patchctl apply --profile {PROFILE} --release {RELEASE.name}"
        parser.error(f"--tree {args.tree} has no {TRAINER}: it takes verl as `{apply}` makes it")
    if args.vocabulary < 16 or min(args.steps, args.prompts, args.samples, args.answer, args.micro) < 1:
        parser.error("--vocabulary is at least 16, and what is counted at least 1")
    if args.prompts * args.samples % args.micro:
        parser.error("--micro has to divide the answers of a step, --prompts times --samples")
    return args


def _find(args: argparse.Namespace) -> tuple[str | None, list[str]]:
    """The first that can run it, and what each says that was looked at."""
    named = [args.python] if args.python else [os.environ.get("PATCHCTL_TORCH_PYTHON"), "python3"]
    if not args.python:
        named += [
            *(f"python3.{minor}" for minor in (13, 12, 11, 10)),
            str(HERE / f".venv-{RELEASE.environment}" / "bin" / "python"),
        ]
    looked = []
    for python in dict.fromkeys(filter(None, map(shutil.which, filter(None, named)))):
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no word"]
            looked.append(f"{python} ({lines[-1] if 'Error: ' in lines[-1] else lines[0]})")
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        looked.append(f"{python} (torch {found['torch']}, {found['gpu'] or 'no GPU'}")
        usable = args.device == "cpu" or found["gpu"]
        looked[-1] += f", lacks {', '.join(found['lacks'])})" if usable and found["lacks"] else ")"
        if usable and not found["lacks"]:
            return python, looked
    return None, looked or [f"{', '.join(filter(None, named))}: none is there"]


def _run(python: str, args: argparse.Namespace) -> int:
    """What the trainer's half ends with."""
    device = "cpu" if args.device == "cpu" else "cuda"
    size = args.size or {"cuda": "small", "cpu": "tiny"}[device]
    out = args.out.resolve()
    tree = args.tree or out / "workspace" / "verl"
    if args.tree is None:
        mirrors = [word for one in args.mirror for word in ("--mirror", one)]
        apply = [Path(sys.executable).with_name("patchctl"), "--root", HERE, "apply", "--workspace", tree.parent]
        subprocess.run(
            [*apply, "--profile", PROFILE, "--release", RELEASE.name, "--skip-unavailable", *mirrors],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    data = [
        python,
        SCRIPTS / "prepare_data.py",
        "made-sums",
        "--force",
        "--out",
        out / "data",
        "--seed",
        str(args.seed),
    ]
    subprocess.run(data, check=True, stdout=subprocess.DEVNULL)
    settings = vars(args) | {"device": device, "size": size, "columns": SIZES[size], "out": out}
    settings["lr"] = args.lr or 0.2 / SIZES[size]["hidden_size"]
    # verl takes a GPU that it sees, and --device cpu is to be the same everywhere: verl registers the engine for GPUs and NPUs, and
    # takes another device's name by its variable. One thread takes sums in one order.
    as_cpu = {"CUDA_VISIBLE_DEVICES": "", "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda"}
    hidden = as_cpu if device == "cpu" else {}
    threads = {"OMP_NUM_THREADS": "1"} if device == "cpu" else {}
    # Packages that the probe found by way of PYTHONPATH are there for the program too.
    path = os.pathsep.join(filter(None, (str(tree.resolve()), os.environ.get("PYTHONPATH"))))
    offline = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    program: list[str | Path] = [python, SCRIPTS / "demo" / "trainer_half.py", json.dumps(settings, default=str)]
    return subprocess.run(program, env=threads | os.environ | hidden | offline, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
