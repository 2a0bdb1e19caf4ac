"""Reward for choice questions: 1 when the letters of the last \\boxed{} are exactly those of the answer, else 0.

For recipes whose data_source verl has no reward for (DianJin-R1-Data, cflue_mcq; 003, 7.1.3):

    reward.custom_reward_function.path=scripts/rewards/choices.py reward.custom_reward_function.name=compute_score

(verl before 0.9: both without `reward.`)

verl loads this file by its path on whichever node computes rewards, so it imports nothing of this repository.
"""

from __future__ import annotations

import re
from typing import Any

BOX = "\\boxed{"
# A letter beside another Latin one belongs to a word or to a command of LaTeX: \text{B} is B, "D. EBITDA" is D.
LETTERS = re.compile(r"(?<![A-Za-z])[A-G]+(?![A-Za-z])")
# "B. A company" is choice B with its text, "A. 一; C. 三" two such; "C、A" is a list of letters alone.
NAMED = re.compile(r"(?:^|[,，、;；和与及\n])\s*([A-G]+)\s*[.．、:：]")
LISTED = re.compile(r"(?:[A-G\s,，.．、;；:：和与及&{}$]|and\b|\\[a-z]+)+")


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, unanswered: float = 0.0
) -> float:
    """1.0 for exactly the right letters, 0.0 for any other answer, `unanswered` where no last box names a choice.

    An answer that was cut off has none: `+reward.custom_reward_function.reward_kwargs.unanswered=-1` gives it the -1 that 003
    (7.2) names for GRPO. Several letters count as a set: AC, "A, C" and CA are the same.
    """
    given = letters_of_last_box(solution_str)
    if not given:
        return unanswered
    return 1.0 if given == letters(str(ground_truth)) else 0.0


def letters_of_last_box(text: str) -> str:
    """The choices in the last \\boxed{} of a text, in alphabetical order; empty where there is none."""
    start = text.rfind(BOX)
    if start < 0:
        return ""
    return letters(_until_closed(text[start + len(BOX) :]))


def letters(text: str) -> str:
    """The choices A to G that a text names, in alphabetical order, each once; not what stands in the text of a choice."""
    told = NAMED.match(text.lstrip()) and not LISTED.fullmatch(text)
    return "".join(sorted(set("".join((NAMED if told else LETTERS).findall(text)))))


def _until_closed(text: str) -> str:
    """The text up to the brace that closes the box; nothing where the text ends before it."""
    depth = 1
    for position, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[:position]
    return ""
