#!/usr/bin/env python3
"""Reads what verl printed while it trained: a summary on standard output, and a picture of reward, response length, entropy,
KL, gradient, throughput, memory and time per phase.

    python scripts/plot_log.py logs/train.log                        the summary
    python scripts/plot_log.py logs/train.log --out run.png          and the picture (needs matplotlib)
    python scripts/plot_log.py plain.log sam.log --out ab.svg        two runs in one picture, and side by side
    cat first.log resumed.log | python scripts/plot_log.py -         one run in several files
    python scripts/plot_log.py train.log --json | jq .runs[0].phases
    python scripts/plot_log.py train.log --check                     exit 1 when a hint asks for a look
    python scripts/plot_log.py --explain global_seqlen/minmax_diff   what a metric is, and who computes it

Lines of other processes, Ray's prefixes and colours are passed over; *.gz is unpacked. Where a run was resumed, the later
values of a step are taken, and that is said. All metrics are explained in docs/metrics.md.

Exit status: 0; 1 with --check and something to look at; 2 when a file cannot be read or written, or has no step.
"""

# /// script
# dependencies = ["matplotlib", "PyYAML"]
# ///

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

# Works from a checkout that no one has installed: what is used of patchctl needs nothing but Python, and PyYAML is where
# verl is.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path += map(
    str, Path(__file__).resolve().parents[3:4]
)  # of a wheel: where patchctl/_distribution/scripts is installed

if importlib.util.find_spec("yaml") is None:
    print("plot_log.py: PyYAML is not installed, which the table of metrics is read with", file=sys.stderr)
    print(f"  try: {sys.executable} -m pip install PyYAML", file=sys.stderr)
    sys.exit(2)

from log import summary
from log.console import Run, read_run
from log.health import Hint, hints, worth_a_look
from log.metrics import explanation
from log.picture import FORMATS, draw

from patchctl.errors import CLOSED_PIPE, DONE, FINDINGS, INTERRUPTED, PatchctlError, WrongUse
from patchctl.terminal.progress import progress_for
from patchctl.terminal.text import render_error, visible_line

NO_MATPLOTLIB = "no picture: matplotlib is not installed"
# For the interpreter that was asked, since there are several: the training's, the tool's, the system's.
HOW_MATPLOTLIB = f"{sys.executable} -m pip install matplotlib, or --csv FILE, which needs nothing"


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        return _explain(args.explain) if args.explain else _summarise(args)
    except PatchctlError as error:
        render_error(error, as_json=args.json, program="plot_log.py")
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output went away; what is still buffered must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "logs", nargs="*", metavar="LOG", type=Path, help="verl's console output; - reads standard input"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="draw a picture: *.png or *.svg")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write every metric of every step")
    parser.add_argument("--json", action="store_true", help="the summary as one JSON object")
    parser.add_argument("--devices", metavar="N", type=int, help="devices of the run (an A3 card is two): compared")
    parser.add_argument("--check", action="store_true", help="exit 1 when a hint asks for a look")
    parser.add_argument("--explain", metavar="METRIC", nargs="+", help="say what metrics are, and read no log")
    return parser


def _summarise(args: argparse.Namespace) -> int:
    _check_use(args)
    names = _names(args.logs)
    read = [_read(path, name, as_json=args.json) for path, name in zip(args.logs, names, strict=True)]
    runs = [run for run in read if run.steps]
    if not runs:
        hint = "the output of the driver (train.sh), with console among trainer.logger"
        raise WrongUse("no step of verl is in it (step:N - key:value - ...)", where=str(args.logs[0]), hint=hint)
    for path, run in zip(args.logs, read, strict=True):
        if not run.steps:
            print(f"plot_log.py: {visible_line(str(path))}: left out, as no step of verl is in it", file=sys.stderr)
    found = [(run, hints(run, args.devices)) for run in runs]
    # Files before the table: who reads that may go away (| head), and the files are wanted all the same.
    no_picture = bool(args.out) and importlib.util.find_spec("matplotlib") is None
    if args.csv:
        _write(args.csv, lambda target: _write_csv(runs, target))
    if args.out and not no_picture:
        _write(args.out, lambda target: draw(runs, args.out, target))
    if args.json:
        print(json.dumps(summary.as_json(found), indent=2, allow_nan=False))
    else:
        for line in summary.text(found):
            print(visible_line(line))
    sys.stdout.flush()
    if no_picture:
        raise WrongUse(NO_MATPLOTLIB, hint=HOW_MATPLOTLIB)
    return _status(found) if args.check else DONE


def _status(found: Sequence[tuple[Run, Sequence[Hint]]]) -> int:
    return FINDINGS if any(list(worth_a_look(hints_of)) for _, hints_of in found) else DONE


def _check_use(args: argparse.Namespace) -> None:
    """Refuses before a gigabyte is read what would be refused after it."""
    if not args.logs:
        raise WrongUse("no log is given", hint="plot_log.py logs/train.log, or --help")
    if args.logs.count(Path("-")) > 1:
        raise WrongUse("standard input can be read once", hint="name one - only")
    if args.devices is not None and args.devices < 1:
        raise WrongUse(f"--devices {args.devices}: not a number of devices", hint="nodes times devices of a node")
    if args.out and args.out.suffix.lower() not in FORMATS:
        raise WrongUse(f"--out {args.out}: neither .png nor .svg", hint=f"--out {args.out.with_suffix('.png')}")
    if args.out and args.csv and args.out.absolute() == args.csv.absolute():
        raise WrongUse(f"--out and --csv are both {args.out}", hint="a file for each")
    for option, file in (("--out", args.out), ("--csv", args.csv)):
        if file is None:
            continue
        if not file.absolute().parent.is_dir():
            raise WrongUse(f"{option} {file}: there is no such folder", hint=f"mkdir -p {file.absolute().parent}")
        if any(log.exists() and file.exists() and log.samefile(file) for log in args.logs):
            raise WrongUse(f"{option} {file}: that is the log", hint="another name")


def _names(paths: Sequence[Path]) -> list[str]:
    """How runs are called: the file's name, with as many of its folders as are needed to tell them apart."""
    parts = [("standard input",) if str(path) == "-" else path.absolute().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise WrongUse("a log is named twice", hint="name each log once")


def _read(path: Path, name: str, *, as_json: bool) -> Run:
    progress = progress_for(None if not as_json else open(os.devnull, "w"))  # noqa: SIM115
    try:
        size = path.stat().st_size if path.is_file() and path.suffix != ".gz" else None
        progress.start(name, size)
        run = read_run(path, name, progress.advance)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WrongUse(
            f"cannot be read: {reason}", where=str(path), hint="a file that verl's output went into"
        ) from error
    finally:
        progress.finish()
    return run


def _write(file: Path, write: Callable[[Path], None]) -> None:
    """Write a file whole or not at all: a picture that someone looks at is never half of one."""
    target = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        write(target)
        os.replace(target, file)
    except OSError as error:
        raise WrongUse(f"cannot be written: {error.strerror}", where=str(file), hint="another place") from error
    finally:
        target.unlink(missing_ok=True)


def _write_csv(runs: Sequence[Run], target: Path) -> None:
    with target.open("w", encoding="utf-8", newline="") as stream:
        summary.write_csv(runs, stream)


def _explain(names: Sequence[str]) -> int:
    for name in names:
        metric = explanation(name)
        if metric is None:
            raise WrongUse(f"{name}: not a metric of verl that is known here", hint="docs/metrics.md has them all")
        print(f"{name}: {metric.what}{f' [{metric.unit}]' if metric.unit else ''}")
        print(f"  computed by: {metric.computed_by()}")
        if metric.read:
            print(f"  how to read it: {metric.read}")
        if metric.wrong:
            print(f"  not so: {metric.wrong}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
