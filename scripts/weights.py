#!/usr/bin/env python3
"""Say what weights a profile needs, fetch them, and say whether a folder of weights is whole.

Fetching is left to the publishers' own tools: huggingface_hub (in every environment that has transformers) or modelscope.
Both go on where they stopped. Before it starts the free disk is looked at, afterwards every file. `list` and `check` need
nothing but Python.

examples:
  weights.py list
  weights.py fetch Qwen/Qwen3-32B --out models/Qwen3-32B --from modelscope
  HF_ENDPOINT=https://hf-mirror.com weights.py fetch Qwen/Qwen3-8B --out models/Qwen3-8B
  weights.py config-only Qwen/Qwen3-235B-A22B --out models/Qwen3-235B-A22B-config     (for qwen3-235b/grpo-random-init)
  weights.py check models/Qwen3-32B
"""

# /// script
# dependencies = ["huggingface_hub", "modelscope"]
# ///

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.checkpoint import faults
from data.ending import Full, WrongUse, finish, gigabytes

FINDINGS, UNAVAILABLE = 1, 3
MIRROR = "https://hf-mirror.com"
# 002's list for random weights, and what a model may need beside it: its code, its chat template.
CONFIG_FILES = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "vocab.json"),
    *("configuration_*.py", "modeling_*.py", "chat_template*"),
)
# Without the copies in other formats that some repositories carry beside the safetensors files.
ALL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.py", "chat_template*", "LICENSE*")
# Files beside the weights: tokenizers are the largest of them.
SMALL_FILES = 50_000_000


@dataclass(frozen=True)
class Model:
    """Published weights. `size` is in bytes; `profiles` are those whose recipes train it."""

    model: str
    size: int
    profiles: str
    note: str


MODELS = (
    Model("Qwen/Qwen3-235B-A22B", 470_187_269_120, "qwen3-235b", "002 says 440 GB, which are GiB"),
    Model(
        "Qwen/Qwen3-235B-A22B-Thinking-2507", 470_187_269_120, "qwen3-235b", "000's, context of 256 K (dapo-longseq)"
    ),
    Model("Qwen/Qwen3-32B", 65_524_246_528, "qwen3-32b", "002 and 003: 65 GB"),
    Model("Qwen/Qwen3-8B", 16_381_470_720, "qwen3-8b", "003, chapter 7"),
    Model("Qwen/Qwen2.5-1.5B-Instruct", 3_087_428_608, "qwen2.5-1.5b", "004"),
    Model("deepseek-ai/DeepSeek-R1", 688_586_727_753, "deepseek-r1", "fp8: fp8_to_bf16.py makes 1,342 GB of it"),
    Model("deepseek-ai/DeepSeek-V3-Base", 688_586_727_753, "deepseek-r1", "fp8; what verl's recipe/r1_ascend trains"),
)


class Unavailable(WrongUse):
    """Weights that could not be had."""

    code = UNAVAILABLE
    kind = "source-unavailable"


def main() -> int:
    args = arguments()
    return int(args.run(args))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    shown = verbs.add_parser("list", help="the models of the profiles, their sizes and where they come from")
    shown.set_defaults(run=list_models)
    for verb, what in (("fetch", "all files of a model"), ("config-only", "its configuration and tokenizer alone")):
        part = verbs.add_parser(verb, help=f"fetch {what}")
        part.set_defaults(run=fetch, config_only=verb == "config-only")
        part.add_argument("model", metavar="MODEL", help="as published, e.g. Qwen/Qwen3-32B")
        part.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder for the files")
        part.add_argument("--from", dest="source", choices=("hf", "modelscope"), default="hf", help="default: hf")
        part.add_argument("--mirror", action="store_true", help=f"hf: from {MIRROR}; HF_ENDPOINT names another")
        part.add_argument("--revision", metavar="REV", help="a branch, tag or commit")
        part.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    checked = verbs.add_parser("check", help="say whether a folder holds a whole model; 1 when it does not")
    checked.set_defaults(run=check)
    checked.add_argument("folder", type=Path, metavar="DIR")
    checked.add_argument("--config-only", action="store_true", help="weights need not be there")
    for one in (shown, checked):
        one.add_argument("--json", action="store_true", help="one JSON object")
    return parser.parse_args()


def list_models(args: argparse.Namespace) -> int:
    if args.json:
        models = [asdict(model) for model in MODELS]
        print(json.dumps({"schema": "patchctl.weights/1", "models": models}, indent=2))
        return 0
    for model in MODELS:
        print(f"{model.model:36} {gigabytes(model.size):>9}  {model.profiles:13} {model.note}")
    print(f"\nhttps://huggingface.co/MODEL, {MIRROR}/MODEL, https://www.modelscope.cn/models/MODEL")
    return 0


def check(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise WrongUse("no such folder", where=str(args.folder))
    found = faults(args.folder, config_only=args.config_only)
    if args.json:
        result = {"schema": "patchctl.weights-check/1", "folder": str(args.folder), "whole": not found, "faults": found}
        print(json.dumps(result, indent=2))
    else:
        print("\n".join(found) if found else f"{args.folder}: whole")
    return FINDINGS if found else 0


def fetch(args: argparse.Namespace) -> int:
    patterns = CONFIG_FILES if args.config_only else ALL_FILES
    if args.source == "modelscope":
        command = modelscope_command(args.model, args.out, patterns, args.revision)
        size = 0 if args.config_only else max(0, _known_size(args.model) - _weights_there(args.out))
        _say_plan(args, size, shlex.join(command))
        if not args.dry_run:
            _require_room(args.out, size)
            _run_modelscope(command)
    else:
        hub = Hub(args)
        size = _known_size(args.model) if args.dry_run else hub.missing(patterns)
        _say_plan(args, size, f"huggingface_hub.snapshot_download from {hub.endpoint}")
        if not args.dry_run:
            _require_room(args.out, size)
            hub.download(patterns)
            if not args.config_only:
                hub.take_away_parts()
    return 0 if args.dry_run else _checked(args)


def modelscope_command(model: str, out: Path, patterns: Sequence[str], revision: str | None) -> list[str]:
    """modelscope's own command line, as 002 has it."""
    command = ["modelscope", "download", "--model", model, "--include", *patterns, "--local_dir", str(out)]
    return [*command, *(["--revision", revision] if revision else [])]


class Hub:
    """Hugging Face's hub or a mirror of it, through huggingface_hub."""

    def __init__(self, args: argparse.Namespace) -> None:
        try:
            import huggingface_hub
        except ImportError:
            hint = "run this with the Python of the training environment, pip install huggingface_hub, or --from modelscope"
            raise WrongUse(f"{sys.executable} has no huggingface_hub", hint=hint) from None
        self._library = huggingface_hub
        self._model, self._out, self._revision = args.model, args.out, args.revision
        self.endpoint = MIRROR if args.mirror else os.environ.get("HF_ENDPOINT", "https://huggingface.co")

    def missing(self, patterns: Sequence[str]) -> int:
        """Bytes that are still to be fetched. Raises Unavailable."""
        from huggingface_hub.utils import filter_repo_objects

        api = self._library.HfApi(endpoint=self.endpoint)
        info = self._asked(lambda: api.model_info(self._model, revision=self._revision, files_metadata=True))
        sizes = {one.rfilename: one.size or 0 for one in info.siblings or []}
        wanted = filter_repo_objects(sizes, allow_patterns=list(patterns))
        return sum(sizes[name] for name in wanted if not self._is_there(name, sizes[name]))

    def download(self, patterns: Sequence[str]) -> None:
        """Fetches what is not there yet. Raises Unavailable."""
        self._asked(
            lambda: self._library.snapshot_download(
                self._model,
                revision=self._revision,
                local_dir=self._out,
                allow_patterns=list(patterns),
                endpoint=self.endpoint,
            )
        )

    def take_away_parts(self) -> None:
        """After a whole fetch: huggingface_hub 1 begins a part of a fetch that was killed anew, and leaves the old one."""
        for part in (self._out / ".cache" / "huggingface" / "download").rglob("*.incomplete"):
            part.unlink(missing_ok=True)

    def _is_there(self, name: str, size: int) -> bool:
        path: Path = self._out / name
        return path.is_file() and path.stat().st_size == size

    def _asked(self, question: Any) -> Any:
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            OfflineModeIsEnabled,
        )

        try:
            return question()
        except HFValidationError as error:
            raise WrongUse(str(error), hint="a model as published, e.g. Qwen/Qwen3-32B") from None
        except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, *_errors_of_the_network()) as error:
            hint = f"--mirror ({MIRROR}), --from modelscope, or HF_TOKEN where the model asks for it; what is there is kept"
            reason = str(error).strip().splitlines()[0]
            raise Unavailable(f"{self._model} could not be had from {self.endpoint}: {reason}", hint=hint) from None


def _errors_of_the_network() -> Iterator[type[Exception]]:
    """Those of the library that huggingface_hub asks with: requests before 1.0, httpx since."""
    for library, error in (("requests.exceptions", "RequestException"), ("httpx", "HTTPError")):
        with contextlib.suppress(ImportError):
            yield getattr(importlib.import_module(library), error)


def _run_modelscope(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        raise WrongUse("there is no modelscope command", hint="pip install modelscope, or --from hf")
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if code != 0:
        raise Unavailable(f"modelscope ended with {code}", hint="run the same again: it goes on where it stopped")


def _known_size(model: str) -> int:
    return next((one.size + SMALL_FILES for one in MODELS if one.model == model), 0)


def _say_plan(args: argparse.Namespace, size: int, how: str) -> None:
    amount = "configuration alone" if args.config_only else gigabytes(size) if size else "size not known"
    print(f"{args.model} -> {args.out}: {amount}; {how}", file=sys.stderr)


def _weights_there(out: Path) -> int:
    return sum(path.stat().st_size for path in out.rglob("*.safetensors"))


def _require_room(out: Path, size: int) -> None:
    """Raises Full where the disk of `out` has less than the `size` bytes free that are still to come."""
    existing = next(path for path in [out.absolute(), *out.absolute().parents] if path.exists())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise Full(
            f"{gigabytes(size)} are needed, and {gigabytes(free)} are free", where=str(out), hint="another --out"
        )


def _checked(args: argparse.Namespace) -> int:
    """huggingface_hub calls a folder done that it could not look up; so it is looked at."""
    found = faults(args.out, config_only=args.config_only)
    print("\n".join(found) if found else f"{args.out}: whole")
    return FINDINGS if found else 0


if __name__ == "__main__":
    sys.exit(finish(main))
