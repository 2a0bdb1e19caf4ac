"""Reward for deepscaler: 0.67 for an answer that is mathematically right, 0.33 for the form that the prompt asks for.

verl v0.6.0 has no reward for this data_source. The weights and the form are those of verl's recipe/r1_ascend (#3427), whose
prompt `prepare_data.py deepscaler` writes; equality is mathruler's, as there:

    reward.custom_reward_function.path=scripts/rewards/deepscaler.py reward.custom_reward_function.name=compute_score

(verl before 0.9: both without `reward.`)

verl loads this file by its path on whichever node computes rewards, so it imports nothing of this repository; mathruler is
in verl's requirements-npu.txt.
"""

# /// script
# dependencies = ["mathruler"]
# ///

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    from mathruler.grader import extract_boxed_content, grade_answer
except ImportError as missing:
    # Not a second grader in its place: nodes that judge differently would train on different rewards.
    raise ImportError("the reward of deepscaler needs mathruler on every node: pip install mathruler") from missing

FORM = ("<think>", "</think>", "<answer>", "\\boxed{", "}", "</answer>")
OPENED = "<think>\n"
# The longest answer of the set has fewer; what is longer is no answer, and sympy takes minutes for some of them.
LONGEST_ANSWER = 500
GRADING_LIMIT_S = 10.0


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,
    form: float = 0.33,
    unanswered: float = 0.0,
    thinking_opened: bool = False,
) -> dict[str, float]:
    """The score, and what it is made of: `acc` (0 or 1) and `form` (0 or 1), which verl logs beside it.

    Set by `+reward.custom_reward_function.reward_kwargs.NAME=VALUE`:
    form: what the form is worth; the answer is worth the rest. 0 for a prompt that asks for no form.
    unanswered: the score where there is no \\boxed{}, as in an answer that was cut off (003, 7.2 names -1 for GRPO).
    thinking_opened: the chat template writes <think> itself (Qwen3-*-Thinking-2507, DeepSeek-R1), so that it is in the
    prompt and not in the response.
    """
    text = (OPENED if thinking_opened else "") + solution_str.strip()
    formed = float(_formed(text))
    boxed = extract_boxed_content(text)
    if boxed == "None":
        return {"score": unanswered, "acc": 0.0, "form": formed}
    right = float(len(boxed) <= LONGEST_ANSWER and _equal(boxed, str(ground_truth)))
    # Rounded, so that 0.33 + 0.67 is the 1.0 that a reader of the log looks for.
    return {"score": round(form * formed + (1.0 - form) * right, 6), "acc": right, "form": formed}


def _formed(text: str) -> bool:
    """Whether the parts of the form follow one another, from the text's first character to its last.

    No regular expression: one with five gaps takes minutes for an answer that repeats itself to the length limit, and would
    run outside of the grading limit.
    """
    first, *inner, last = FORM
    if not (text.startswith(first) and text.endswith(last)):
        return False
    end = len(first)
    for part in inner:
        found = text.find(part, end)
        if found < 0:
            return False
        end = found + len(part)
    return end <= len(text) - len(last)


def _equal(given: str, truth: str) -> bool:
    try:
        with _at_most(GRADING_LIMIT_S):
            return bool(grade_answer(given, truth))
    except TimeoutError:
        return False


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block after that time: sympy can work on one answer for hours ("9999999!").

    In whichever thread it is: verl's reward managers grade in threads from 0.9 on, where no signal arrives.
    """
    thread, lock, ended = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def give_up() -> None:
        with lock:
            if not ended:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeoutError))

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            ended = True
        timer.cancel()
