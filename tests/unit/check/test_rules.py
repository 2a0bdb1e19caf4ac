"""The list of rules is complete: what checks report is documented, and what is documented is reported."""

from __future__ import annotations

import ast
from pathlib import Path

from patchctl import check
from patchctl.check.pages import rules_page
from patchctl.check.patch_rules import PATCH_CHECKS
from patchctl.check.rules import all_rules


def reported() -> set[str]:
    """The rule of every finding that a check makes: the first argument, where it is written out."""
    found: set[str] = set()
    packages = [
        Path(check.__file__).parent,
        Path(check.__file__).parents[1] / "image",
        Path(check.__file__).parents[1] / "sbom",
        Path(check.__file__).parents[1] / "training" / "recipes",
    ]
    for file in (file for package in packages for file in package.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if name in ("Finding", "at", "from_error") and isinstance(first, ast.Constant):
                found.add(str(first.value))
    return found


def test_every_rule_is_reported_by_some_check_and_every_report_is_of_a_rule() -> None:
    by_table = {
        "page-stale",
        "schema-stale",
        "wrong-base",
        "wrong-tip",
        "recipe-rule",
        "recipe-needs",
    }  # chosen by a value there
    rules = set(all_rules())  # which registers the checks of patch files
    assert reported() | set(PATCH_CHECKS) | by_table == rules


def test_every_rule_says_what_holds_and_why() -> None:
    rules = all_rules()
    assert [r.id for r in rules.values() if not r.holds or not r.why or r.holds == r.why] == []
    assert all(f"| `{name}` |" in rules_page() for name in rules)
