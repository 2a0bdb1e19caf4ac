"""The data sets that prepare_data.py knows: their fields, their prompt, and where their answer stands; public ones, and one
that is made here.

Prompts and answers are those of verl's own scripts where it has one (v0.6.0, examples/data_preprocess; recipe/r1_ascend of a
later revision for deepscaler): tests/scripts/test_prepare_data.py runs both on the same rows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rewards.choices import letters_of_last_box

from data.ending import WrongUse
from data.rows import Row

Sample = dict[str, Any]
STEP_BY_STEP = "Let's think step by step and output the final answer "
# The prompt of DeepSeek-R1-Zero (arXiv 2501.12948, table 1) with the box that verl's recipe/r1_ascend adds to it.
THINK_THEN_ANSWER = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. "
    "The assistant first thinks about the reasoning process in the mind and then provides the user with the answer. "
    "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, "
    "i.e., <think> reasoning process here </think><answer> answer here </answer>. "
    "Put your final answer within \\boxed{}. "
)

# What verl v0.6.0 has a reward for (verl/utils/reward_score/__init__.py, default_compute_score); * stands for any end.
SCORED_BY_VERL = (
    *("openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"),
    *("math_dapo", "math", "math_dapo_reasoning", "aime*", "hiyouga/geometry3k"),
    *("numina_aops_forum", "numina_synthetic_math", "numina_amc_aime", "numina_synthetic_amc", "numina_cn_k12"),
    *("numina_olympiads", "codecontests", "apps", "codeforces", "taco", "searchR1_nq", "searchR1_triviaqa"),
    *("searchR1_popqa", "searchR1_hotpotqa", "searchR1_2wikimultihopqa", "searchR1_musique", "searchR1_bamboogle"),
)


class Unanswered(Exception):
    """A row without the answer that its reward would be computed from. Says what is missing."""


@dataclass(frozen=True)
class DataSet:
    """One set. `convert` makes verl's row of one of its rows, and raises Unanswered. One that is made has no files: `make`
    gives the fields of so many rows for training, drawn with a seed, and those for validation."""

    published: str
    files: str
    fields: tuple[str, ...]
    convert: Callable[[Row], Sample]
    optional: tuple[str, ...] = ()
    reward: str | None = None
    train_ratio: float | None = None
    test_only: bool = False
    repeated: bool = False
    numbered: bool = True
    make: Callable[[int, int], tuple[Iterator[Sample], Iterator[Sample]]] | None = None
    notes: tuple[str, ...] = field(default=())


def reward_of_verl(data_source: str) -> bool:
    """Whether verl v0.6.0 scores this data_source itself."""
    return any(
        data_source.startswith(known[:-1]) if known.endswith("*") else data_source == known for known in SCORED_BY_VERL
    )


def check_fields(known: DataSet, row: Row, ignored: frozenset[str]) -> None:
    """Raises WrongUse for a row that lacks a field of its set, or has one that the set is not known to have."""
    missing = [name for name in known.fields if name not in row.fields]
    if missing:
        raise WrongUse(
            f"row {row.number} has no field {', '.join(missing)}; it has {', '.join(map(str, row.fields))}",
            where=row.file,
            hint=f"{known.files} of {known.published} has {', '.join(known.fields)}: is it another set?",
        )
    unknown = set(row.fields) - set(known.fields) - set(known.optional) - ignored
    if unknown:
        raise WrongUse(
            f"row {row.number} has an unknown field {', '.join(sorted(map(str, unknown)))}",
            where=row.file,
            hint=" ".join(f"--ignore-field {name}" for name in sorted(map(str, unknown))),
        )


def text(row: Row, name: str) -> str:
    """A field that has to hold a text. Raises WrongUse."""
    value = row.fields[name]
    if not isinstance(value, str) or not value.strip():
        kind = "is empty" if isinstance(value, str) else f"is {type(value).__name__}, not a text"
        raise WrongUse(f"row {row.number}: its field {name} {kind}", where=row.file)
    return value


def answer(value: Any, name: str) -> str:
    """A field that has to hold the answer. Raises Unanswered where it is empty."""
    if value is None or isinstance(value, (list, dict)) or not str(value).strip():
        raise Unanswered(f"its {name} is empty")
    return str(value)


def last_boxed(solution: str) -> str | None:
    """What stands in the last \\boxed{} (or \\boxed followed by a blank, or \\fbox{}) of a solution; None without one."""
    if "\\boxed " in solution:
        return solution.split("\\boxed ")[-1].split("$")[0]
    start = solution.rfind("\\boxed" if "\\boxed" in solution else "\\fbox")
    if start < 0:
        return None
    opening = solution.find("{", start)
    depth = 0
    for position in range(opening, len(solution)) if opening >= 0 else ():
        depth += {"{": 1, "}": -1}.get(solution[position], 0)
        if depth == 0:
            return solution[opening + 1 : position]
    return None


def _sample(data_source: str, question: str, truth: str, extra: Sample, system: str | None = None) -> Sample:
    before = [{"role": "system", "content": system}] if system else []
    return {
        "data_source": data_source,
        "prompt": [*before, {"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": extra,
    }


def _deepscaler(row: Row) -> Sample:
    truth = answer(row.fields["answer"], "answer")
    extra = {"answer": str(row.fields["solution"] or "")}
    return _sample("deepscaler", text(row, "problem"), truth, extra, system=THINK_THEN_ANSWER)


def _gsm8k(row: Row) -> Sample:
    question, solution = text(row, "question"), answer(row.fields["answer"], "answer")
    found = re.search(r"#### (-?[0-9.,]+)", solution)
    if found is None:
        raise Unanswered("its answer has no '#### NUMBER'")
    return _sample(
        "openai/gsm8k",
        f'{question} {STEP_BY_STEP}after "####".',
        found.group(1).replace(",", ""),
        {"answer": solution, "question": question},
    )


def _math(row: Row) -> Sample:
    truth = last_boxed(answer(row.fields["solution"], "solution"))
    if truth is None:
        raise Unanswered("its solution has no \\boxed{}")
    return _boxed_question("DigitalLearningGmbH/MATH-lighteval", row, truth)


def _math_500(row: Row) -> Sample:
    return _boxed_question("HuggingFaceH4/MATH-500", row, answer(row.fields["answer"], "answer"))


def _boxed_question(data_source: str, row: Row, truth: str) -> Sample:
    return _sample(data_source, f"{text(row, 'problem')} {STEP_BY_STEP}within \\boxed{{}}.", truth, {})


def _dapo_math(row: Row) -> Sample:
    """Published in verl's own form; what is passed on is checked."""
    reward, prompt = row.fields["reward_model"], row.fields["prompt"]
    if not isinstance(reward, dict):
        raise WrongUse(f"row {row.number}: its reward_model is {type(reward).__name__}, not an object", where=row.file)
    truth = answer(reward.get("ground_truth"), "reward_model.ground_truth")
    messages = prompt if isinstance(prompt, list) else []
    if not messages or not all(isinstance(one, dict) and one.get("role") and one.get("content") for one in messages):
        raise WrongUse(f"row {row.number}: its prompt is no list of messages with role and content", where=row.file)
    return {
        "data_source": text(row, "data_source"),
        "prompt": [{"role": one["role"], "content": one["content"]} for one in messages],
        "ability": row.fields["ability"],
        "reward_model": {"style": str(reward.get("style", "rule")), "ground_truth": truth},
        "extra_info": row.fields["extra_info"] or {"index": row.number - 1},
    }


def _choices(row: Row) -> Sample:
    """The letters are those of the box in <answer>; 003's script keeps single letters only, and pays for an empty box."""
    question, output = text(row, "instruction"), answer(row.fields["output"], "output")
    answers = re.findall(r"<answer>(.*?)</answer>", output, re.DOTALL)
    truth = letters_of_last_box(answers[-1] if answers else output)
    if not truth:
        raise Unanswered("its output has no \\boxed{} with a choice A to G")
    sample = _sample("cflue_mcq", question, truth, {"answer": output, "question": question})
    return sample | {"ability": "finance"}


LARGEST_TERM = 3


def _made_sums(count: int, seed: int) -> tuple[Iterator[Sample], Iterator[Sample]]:
    """Sums of two numbers up to 3, drawn with a seed; and each of the 16 once, in order."""
    draw, terms = random.Random(seed), range(LARGEST_TERM + 1)
    drawn = ((draw.choice(terms), draw.choice(terms)) for _ in range(count))
    every = ((first, second) for first in terms for second in terms)
    return _sums(drawn), _sums(every)


def _sums(pairs: Iterator[tuple[int, int]]) -> Iterator[Sample]:
    return ({"question": f"{first}+{second}=", "answer": str(first + second)} for first, second in pairs)


def _sum(row: Row) -> Sample:
    return _sample("made/sums", text(row, "question"), answer(row.fields["answer"], "answer"), {})


KNOWN = {
    "made-sums": DataSet(
        published="nowhere: made here, for `make demo`",
        files="none",
        fields=("question", "answer"),
        convert=_sum,
        reward="sums.py",
        make=_made_sums,
        notes=(
            "Sums of two numbers up to 3, one digit each: --count rows drawn with --seed, and all 16 in test.parquet.",
        ),
    ),
    "deepscaler": DataSet(
        published="agentica-org/DeepScaleR-Preview-Dataset",
        files="deepscaler.json",
        fields=("problem", "answer", "solution"),
        convert=_deepscaler,
        reward="deepscaler.py",
        train_ratio=0.9,
        notes=("Six of its 40,315 rows are published without an answer: --drop-unanswered leaves them out.",),
    ),
    "dapo-math-17k": DataSet(
        published="BytedTsinghua-SIA/DAPO-Math-17k, validation BytedTsinghua-SIA/AIME-2024",
        files="data/dapo-math-17k.parquet, data/aime-2024.parquet",
        fields=("data_source", "prompt", "ability", "reward_model", "extra_info"),
        convert=_dapo_math,
        repeated=True,
        numbered=False,
        notes=(
            "It is published about 100 times over; each problem is kept once unless --keep-repeats is given.",
            "AIME-2024 repeats its 30 problems 32 times on purpose; --unique-validation keeps each once.",
        ),
    ),
    "gsm8k": DataSet(
        published="openai/gsm8k",
        files="main/train-*.parquet, validation main/test-*.parquet",
        fields=("question", "answer"),
        convert=_gsm8k,
    ),
    "MATH-lighteval": DataSet(
        published="DigitalLearningGmbH/MATH-lighteval",
        files="data/train-*.parquet, validation data/test-*.parquet",
        fields=("problem", "solution"),
        optional=("level", "type"),
        convert=_math,
    ),
    "MATH-500": DataSet(
        published="HuggingFaceH4/MATH-500",
        files="test.jsonl",
        fields=("problem", "answer"),
        optional=("solution", "subject", "level", "unique_id"),
        convert=_math_500,
        test_only=True,
    ),
    "DianJin-R1": DataSet(
        published="tongyi_dianjin/DianJin-R1-Data (ModelScope)",
        files="data/train/cflue_mcq.json",
        fields=("instruction", "output"),
        convert=_choices,
        reward="choices.py",
        notes=("003 (7.1) validates on what it trains on; --train-ratio 0.95 keeps rows back.",),
    ),
}
