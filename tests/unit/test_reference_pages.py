"""The tables of reference pages have all that the code has, and no more."""

from __future__ import annotations

import re
from pathlib import Path

from patchctl.cli import verbs
from patchctl.errors import CLOSED_PIPE, DONE, ENDED_BY, FINDINGS, INTERRUPTED, MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK
from patchctl.exit_codes import EXIT_CODES

PACKAGE = Path(__file__).parents[2] / "patchctl"
CONSTANTS = {DONE, FINDINGS, MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK, INTERRUPTED, CLOSED_PIPE, ENDED_BY + 1, ENDED_BY + 15}


def test_every_code_of_an_error_has_a_row_and_no_other() -> None:
    sources = (path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    of_classes = {int(code) for text in sources for code in re.findall(r"(?m)^    code = (\d+)$", text)}
    rows = [one.code for one in EXIT_CODES]
    assert rows == sorted(CONSTANTS | of_classes)


def test_the_commands_of_the_cases_exist() -> None:
    named = {name for one in EXIT_CODES for names in one.cases for name in names.split(", ") if name}
    assert named <= {*verbs()} and "preflight" in named
