#!/usr/bin/env python3
"""Turn the local files of a public data set into verl's parquet, or make a small set.

Run it with the Python of the training environment (it needs pyarrow). Files in: .json, .jsonl or .parquet, as the set is
published. Files out: train.parquet and test.parquet in --out, in verl's columns data_source, prompt, ability, reward_model
and extra_info. Nothing is downloaded.

examples:
  prepare_data.py deepscaler --input deepscaler.json --out data/deepscaler --drop-unanswered
  prepare_data.py dapo-math-17k --input dapo-math-17k.parquet --validation aime-2024.parquet --out data/dapo_math
  prepare_data.py gsm8k --input train-00000-of-00001.parquet --validation test-00000-of-00001.parquet --out data/gsm8k
  prepare_data.py DianJin-R1 --input cflue_mcq.json --out data/cflue --train-ratio 0.95
  prepare_data.py made-sums --out data/sums --count 4096 --seed 0
  prepare_data.py --list
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.ending import WrongUse, finish
from data.rows import Row, read_rows
from data.sets import KNOWN, DataSet, Sample, Unanswered, check_fields, reward_of_verl

REWARDS = Path(__file__).resolve().parent / "rewards"
PROGRESS_EVERY = 200_000
MADE_ROWS = 4096
SHOWN = 10


@dataclass
class Part:
    """What was made of some files."""

    samples: list[Sample] = field(default_factory=list)
    read: int = 0
    unanswered: list[str] = field(default_factory=list)
    repeats: int = 0
    contradicted: list[str] = field(default_factory=list)


def main() -> int:
    args = arguments()
    if args.list:
        print(listing())
        return 0
    known = KNOWN[args.dataset]
    _require_pyarrow()
    _check_options(known, args)
    train, test = parts(known, args)
    written = _targets(Path(args.out), train.samples, test.samples, args.force)
    write(written)
    report(args, known, train, test, written)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", choices=list(KNOWN), metavar="DATASET", help=", ".join(KNOWN))
    parser.add_argument("--list", action="store_true", help="the data sets, their addresses, files and fields")
    parser.add_argument("--input", nargs="+", default=[], metavar="FILE", help="the set's files")
    parser.add_argument("--validation", nargs="+", default=[], metavar="FILE", help="files for test.parquet")
    parser.add_argument("--out", metavar="DIR", help="the folder to write to; made if need be")
    parser.add_argument(
        "--train-ratio",
        type=float,
        metavar="R",
        help="keep back what follows the first R of the rows for test.parquet (deepscaler: 0.9, as verl's r1_ascend)",
    )
    parser.add_argument("--data-source", metavar="NAME", help="write this data_source, which selects verl's reward")
    parser.add_argument(
        "--drop-unanswered", action="store_true", help="leave rows without an answer out, and count them"
    )
    parser.add_argument("--keep-repeats", action="store_true", help="keep repeated problems of dapo-math-17k")
    parser.add_argument("--unique-validation", action="store_true", help="take each validation problem once")
    parser.add_argument("--ignore-field", action="append", default=[], metavar="NAME", help="a field to pass over")
    parser.add_argument("--count", type=int, metavar="N", help=f"how many rows of a set that is made [{MADE_ROWS}]")
    parser.add_argument("--seed", type=int, metavar="N", help="which rows of a set that is made [0]")
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    parser.add_argument("--json", action="store_true", help="the counts as one JSON object")
    args = parser.parse_args()
    made = args.dataset is not None and KNOWN[args.dataset].make is not None
    if not args.list and not (args.dataset and (args.input or made) and args.out):
        parser.error("DATASET, --input and --out are needed")
    return args


def listing() -> str:
    lines = []
    for name, known in KNOWN.items():
        lines += [name, f"  published: {known.published}", f"  files: {known.files}"]
        lines += [f"  fields: {', '.join([*known.fields, *(f'{one} (optional)' for one in known.optional)])}"]
        lines += [f"  reward: {f'scripts/rewards/{known.reward}' if known.reward else 'of verl'}"]
        lines += [f"  note: {note}" for note in known.notes]
    return "\n".join(lines)


def parts(known: DataSet, args: argparse.Namespace) -> tuple[Part, Part]:
    """What goes into train.parquet and into test.parquet, converted and numbered."""
    once = known.repeated and not args.keep_repeats
    if known.make:
        made = known.make(MADE_ROWS if args.count is None else args.count, args.seed or 0)
        train, test = (convert(known, _made(rows), Part(), args) for rows in made)
    else:
        train = _converted(known, args.input, args, once=once)
        test = _converted(known, args.validation, args, once=args.unique_validation) if args.validation else Part()
    if known.test_only:
        train, test = test, train
    ratio = args.train_ratio if args.train_ratio is not None else known.train_ratio
    if ratio is not None and not args.validation:
        train.samples, test.samples = split(train.samples, ratio)
    if known.numbered:
        for name, part in (("train", train), ("test", test)):
            for index, sample in enumerate(part.samples):
                sample["extra_info"] = {"split": name, "index": index, **sample["extra_info"]}
    return train, test


def _converted(known: DataSet, files: list[str], args: argparse.Namespace, *, once: bool) -> Part:
    part = Part()
    return convert(known, _rows(files, part), part, args, once=once)


def _made(rows: Iterable[Sample]) -> Iterator[Row]:
    return (Row("made", number, fields) for number, fields in enumerate(rows, 1))


def convert(known: DataSet, rows: Iterable[Row], part: Part, args: argparse.Namespace, *, once: bool = False) -> Part:
    """verl's rows of all of `rows`, into `part`. Raises WrongUse, which names the rows, for what cannot be a sample."""
    truths: dict[str, Any] = {}
    ignored = frozenset(args.ignore_field)
    for row in rows:
        check_fields(known, row, ignored)
        try:
            sample = known.convert(row)
        except Unanswered as missing:
            part.unanswered.append(f"{row}: {missing}")
            continue
        if args.data_source:
            sample["data_source"] = args.data_source
        question, truth = _question(sample), sample["reward_model"]["ground_truth"]
        if once and question in truths:
            part.repeats += 1
            if truths[question] != truth:
                part.contradicted.append(f"{row}: its answer is {truth}, and was {truths[question]}")
            continue
        truths[question] = truth
        part.samples.append(sample)
    _refuse_unanswered(part, drop=args.drop_unanswered)
    if not part.samples:
        raise WrongUse("no row to write", where=", ".join([*args.input, *args.validation]) or args.dataset)
    return part


def split(samples: list[Sample], ratio: float) -> tuple[list[Sample], list[Sample]]:
    """The first part for training, the rest for validation, in the order of the file: no chance is involved."""
    count = int(len(samples) * ratio)
    if not 0 < count < len(samples):
        raise WrongUse(
            f"a train ratio of {ratio} leaves {count} of {len(samples)} rows for training", hint="another ratio"
        )
    return samples[:count], samples[count:]


def write(files: dict[Path, list[Sample]]) -> None:
    """Writes all files under other names first, so that neither half of one nor one without the other is ever found."""
    import pyarrow
    import pyarrow.parquet

    partials = {path: path.with_name(f".{path.name}.{os.getpid()}.partial") for path in files}
    try:
        for path, samples in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(samples), partials[path])
        for path, partial in partials.items():
            os.replace(partial, path)
    except pyarrow.ArrowException as error:
        raise WrongUse(f"the rows do not fit into one table: {error}", where=", ".join(map(str, files))) from None
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)


def report(
    args: argparse.Namespace, known: DataSet, train: Part, test: Part, written: dict[Path, list[Sample]]
) -> None:
    """Prints what was read, left out and written, and what the reward needs."""
    sources = sorted({sample["data_source"] for samples in written.values() for sample in samples})
    without = [source for source in sources if not reward_of_verl(source)]
    shared = {_question(sample) for sample in train.samples} & {_question(sample) for sample in test.samples}
    result = {
        "schema": "patchctl.prepared-data/1",
        "dataset": args.dataset,
        "read": train.read + test.read,
        "unanswered": [*train.unanswered, *test.unanswered],
        "repeats": train.repeats + test.repeats,
        "contradicted": [*train.contradicted, *test.contradicted],
        "in_both": len(shared),
        "files": {str(path): len(samples) for path, samples in written.items()},
        "data_source": sources,
        "reward": _reward(known, without),
    }
    print(json.dumps(result, indent=2, ensure_ascii=False) if args.json else _as_text(result, without))


def _as_text(result: dict[str, Any], without: list[str]) -> str:
    lines = [f"{result['dataset']}: {result['read']:,} rows read"]
    if result["unanswered"]:
        lines += [f"  {len(result['unanswered']):,} without an answer left out:", *_first(result["unanswered"])]
    if result["repeats"]:
        lines += [f"  {result['repeats']:,} repeat a problem, and were left out"]
    if result["contradicted"]:
        count = len(result["contradicted"])
        lines += [f"  {count:,} of these have another answer than the first:", *_first(result["contradicted"])]
    lines += [f"  {count:,} rows -> {path}" for path, count in result["files"].items()]
    if result["in_both"]:
        lines += [f"  warning: {result['in_both']:,} problems are in both files"]
    lines += [f"data_source: {', '.join(result['data_source'])}"]
    if without:
        lines += [
            f"reward: verl has none for {', '.join(without)}, and stops at the first step without these (verl before 0.9: without reward.):"
        ]
    else:
        lines += ["reward: verl's own"]
    return "\n".join([*lines, *(f"  {setting}" for setting in result["reward"])])


def _reward(known: DataSet, without: list[str]) -> list[str]:
    """The overrides that name a reward function, where one is needed."""
    if not without:
        return []
    path = REWARDS / known.reward if known.reward else "a file of yours with compute_score"
    return [f"reward.custom_reward_function.path={path}", "reward.custom_reward_function.name=compute_score"]


def _rows(files: list[str], part: Part) -> Iterator[Row]:
    for file in files:
        for row in read_rows(Path(file)):
            part.read += 1
            if part.read % PROGRESS_EVERY == 0:
                print(f"{part.read:,} rows read", file=sys.stderr)
            yield row


def _question(sample: Sample) -> str:
    return "\0".join(message["content"] for message in sample["prompt"])


def _refuse_unanswered(part: Part, *, drop: bool) -> None:
    if part.unanswered and not drop:
        rows = "\n".join(_first(part.unanswered))
        raise WrongUse(
            f"{len(part.unanswered)} of {part.read} rows have no answer to compute a reward from:\n{rows}",
            hint="--drop-unanswered leaves them out",
        )


def _first(lines: list[str]) -> list[str]:
    more = [f"    ... and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
    return [*(f"    {line}" for line in lines[:SHOWN]), *more]


def _targets(out: Path, train: list[Sample], test: list[Sample], force: bool) -> dict[Path, list[Sample]]:
    wanted = {out / "train.parquet": train, out / "test.parquet": test}
    written = {path: samples for path, samples in wanted.items() if samples}
    there = [str(path) for path in written if path.exists()]
    if there and not force:
        raise WrongUse(f"{' and '.join(there)} exists", hint="another --out, or --force to replace it")
    return written


def _check_options(known: DataSet, args: argparse.Namespace) -> None:
    if known.make and (args.input or args.validation or args.train_ratio is not None):
        raise WrongUse(f"{args.dataset} is made, and read from no file", hint="--count and --seed say which rows")
    if not known.make and (args.count is not None or args.seed is not None):
        raise WrongUse(
            f"{args.dataset} is read from files, with all of their rows", hint="leave --count and --seed out"
        )
    if args.count is not None and args.count < 1:
        raise WrongUse(f"--count {args.count}: at least one row is wanted")
    if args.train_ratio is not None and (args.validation or known.test_only):
        raise WrongUse("--train-ratio makes a test.parquet, which there is already", hint="leave one of them out")
    if known.test_only and args.validation:
        raise WrongUse(f"{args.dataset} is for validation only", hint="give its file as --input")
    repeated = [file for file, count in Counter([*args.input, *args.validation]).items() if count > 1]
    if repeated:
        raise WrongUse(f"{', '.join(repeated)} is given twice")


def _require_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise WrongUse(
            f"{sys.executable} has no pyarrow",
            hint="run this with the Python of the training environment, or pip install pyarrow there",
        )


if __name__ == "__main__":
    sys.exit(finish(main))
