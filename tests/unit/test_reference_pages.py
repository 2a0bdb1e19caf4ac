"""The tables of reference pages have all that the code has, and no more."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from patchctl.cli import verbs
from patchctl.cli.generated_pages import VARIABLES
from patchctl.errors import (
    CLOSED_PIPE,
    DONE,
    ENDED_BY,
    EXIT_CODES,
    FINDINGS,
    INTERRUPTED,
    MOVES_CLEANLY,
    SOMEBODY_HAS_TO_WORK,
)

REPO = Path(__file__).parents[2]
PACKAGE = REPO / "patchctl"
CONSTANTS = {DONE, FINDINGS, MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK, INTERRUPTED, CLOSED_PIPE, ENDED_BY + 1, ENDED_BY + 15}


def test_every_code_of_an_error_has_a_row_and_no_other() -> None:
    sources = (path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    of_classes = {int(code) for text in sources for code in re.findall(r"(?m)^    code = (\d+)$", text)}
    rows = [one.code for one in EXIT_CODES]
    assert rows == sorted(CONSTANTS | of_classes)


def test_the_commands_of_the_cases_exist() -> None:
    named = {name for one in EXIT_CODES for names in one.cases for name in names.split(", ") if name}
    assert named <= {*verbs()} and "preflight" in named


def test_every_variable_that_is_named_is_in_the_table_and_no_other() -> None:
    """Pages, and patches, which run in trees without patchctl, are left out."""
    line = ["git", "ls-files", "-z", "--", ".", ":!docs", ":!patches", ":!*.md", ":!patchctl/cli/generated_pages.py"]
    listed = subprocess.run(line, cwd=REPO, capture_output=True, text=True, check=True).stdout.split("\0")
    texts = (
        (REPO / name).read_bytes().decode("utf-8", "replace") for name in listed if name and (REPO / name).is_file()
    )
    found = {name for text in texts for name in re.findall(r"\b_?PATCHCTL_[A-Z][A-Z_]*[A-Z]\b", text)}
    assert sorted(found) == sorted(name for variables in VARIABLES.values() for name in variables)


def test_the_page_of_manifests_has_every_key_of_the_schemas() -> None:
    page = (REPO / "docs/manifest-keys.md").read_text(encoding="utf-8")
    rows = [re.findall(r"(?m)^\| `([^`]+)` \|", section) for section in page.split("\n## ")[1:]]
    schemas = sorted((REPO / "manifests/schema").glob("*.json"))
    wanted = [sorted({*keys_of(json.loads(one.read_text(encoding="utf-8")), "")}) for one in schemas]
    assert sorted(sorted(keys) for keys in rows) == sorted(wanted)
    assert all(len(keys) == len({*keys}) for keys in rows)


def keys_of(schema: dict[str, Any], above: str) -> Iterator[str]:
    for one in (schema, *schema.get("anyOf", ())):
        for name, below in one.get("properties", {}).items():
            yield above + name
            yield from keys_of(below, f"{above}{name}.")
        if "items" in one:
            yield from keys_of(one["items"], f"{above[:-1]}[].")
        if isinstance(one.get("additionalProperties"), dict):
            yield from keys_of(one["additionalProperties"], f"{above[:-1]}.*.")
        if one is not schema and "anyOf" in one:
            yield from keys_of(one, above)
