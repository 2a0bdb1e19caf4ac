#!/usr/bin/env python3
"""Write what AISBench needs to evaluate a served model on MATH-500: its model configuration, and the data in its place.

FOLDER/config/models/vllm_api_general.py goes to `ais_bench --config-dir FOLDER/config`, FOLDER/data to the variable
AIS_BENCH_DATASETS_CACHE. Keys and shapes are those of ais_bench_benchmark 3.1 (github.com/AISBench/benchmark, commit
1e7cb37e); values are 003's (4.8.2). Its max_seq_len and rpm_verbose are left out: VLLMCustomAPI of 3.1 takes neither.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WRONG_USE = 2
MODEL_CONFIG = Path("config/models/vllm_api_general.py")
# Where math_prm800k_500_0shot_cot_gen looks, below AIS_BENCH_DATASETS_CACHE.
MATH_500 = Path("data/ais_bench/datasets/math/test_prm800k_500.json")
WHERE_TO_GET = (
    "http://opencompass.oss-cn-shanghai.aliyuncs.com/datasets/data/math.zip has test_prm800k_500.json (003, 4.8.1)"
)


class Unusable(Exception):
    """An input that AISBench could not use: what, and what to try."""


@dataclass(frozen=True)
class Served:
    """The server to ask, and how. Lengths in tokens; batch_size is the number of requests at once."""

    path: str
    name: str = "qwen3-32b"
    host: str = "localhost"
    port: int = 6380
    max_out_len: int = 20480
    batch_size: int = 48
    retry: int = 2
    temperature: float = 0
    seed: int = 1234


def model_config(served: Served) -> str:
    """The text of vllm_api_general.py."""
    if served.host != "localhost":
        try:
            ipaddress.ip_address(served.host)
        except ValueError:
            raise Unusable(f"host {served.host}: AISBench takes localhost or an address") from None
    return f"""\
# Written by scripts/evaluate/aisbench_config.py; values of 003, 4.8.2.
from ais_bench.benchmark.models import VLLMCustomAPI

models = [
    dict(
        attr="service",
        type=VLLMCustomAPI,
        abbr="vllm-api-general",
        path={served.path!r},
        model={served.name!r},
        request_rate=0,
        retry={served.retry!r},
        host_ip={served.host!r},
        host_port={served.port!r},
        enable_ssl=False,
        max_out_len={served.max_out_len!r},
        batch_size={served.batch_size!r},
        generation_kwargs=dict(temperature={served.temperature!r}, seed={served.seed!r}),
    )
]
"""


def math_500(source: Path) -> dict[str, dict[str, str]]:
    """Problems and solutions by number, from AISBench's own JSON file, a folder with it, or JSON lines with both."""
    file = source / MATH_500.name if source.is_dir() else source
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise Unusable(f"{file}: {reason}; {WHERE_TO_GET}") from None
    rows = _rows(file, text)
    for number, row in rows.items():
        if not (isinstance(row, dict) and isinstance(row.get("problem"), str) and isinstance(row.get("solution"), str)):
            raise Unusable(f"{file}: {number} has no problem and solution; {WHERE_TO_GET}")
        if "\\boxed" not in row["solution"]:
            raise Unusable(f"{file}: the solution of {number} has no \\boxed answer, which is what is compared")
    if not rows:
        raise Unusable(f"{file}: nothing in it; {WHERE_TO_GET}")
    return {str(number): {key: row[key] for key in ("problem", "solution")} for number, row in rows.items()}


def _rows(file: Path, text: str) -> dict[str | int, dict[str, str]]:
    try:
        if file.suffix != ".jsonl":
            value = json.loads(text)
            return value if isinstance(value, dict) else dict(enumerate(value))
        return {str(n): json.loads(line) for n, line in enumerate(filter(str.strip, text.split("\n")))}
    except (ValueError, TypeError) as reason:
        raise Unusable(f"{file}: {reason}; {WHERE_TO_GET}") from None


def write(folder: Path, served: Served, source: Path) -> int:
    """Both files below `folder`, or neither. Returns the number of problems."""
    config, problems = model_config(served), math_500(source)
    for place, text in ((MODEL_CONFIG, config), (MATH_500, json.dumps(problems, ensure_ascii=False, indent=1))):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")
    return len(problems)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--math", type=Path, required=True, help=f"MATH-500: {WHERE_TO_GET}".replace("%", "%%"))
    parser.add_argument("--path", required=True, metavar="MODEL_DIR", help="the model's folder, for its tokenizer")
    defaults = Served("")
    for name in ("name", "host", "port", "max_out_len", "batch_size", "retry", "temperature", "seed"):
        default = getattr(defaults, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"[{default}]")
    args = parser.parse_args(argv)
    values = {name: value for name, value in vars(args).items() if name not in ("folder", "math")}
    try:
        number = write(args.folder, Served(**values), args.math)
    except (Unusable, OSError) as reason:
        print(f"aisbench_config.py: {reason}", file=sys.stderr)
        return WRONG_USE
    print(f"aisbench_config.py: {number} problems", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
