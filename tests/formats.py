"""What readers of findings require of each format, held against an output. Of the formats' own documents:

- JUnit, as Jenkins and GitLab read it: one root, suites whose counts are those of their cases, a case with class and name;
- SARIF 2.1.0, sections 3.13 to 3.28: version, one driver with distinct rules, a level and a message a result, and a place in each
  location;
- GitHub, "Workflow commands": a command a line, properties escaped;
- GitLab, "Code Quality": description, check_name, a fingerprint of its own, a severity and a path with a line for each.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

COMMAND = re.compile(r"::(error|warning|notice) ((?:[a-z]+=[^:,]*)(?:,[a-z]+=[^:,]*)*)::(.+)")


def junit(text: str) -> list[ElementTree.Element]:
    """The cases."""
    root = ElementTree.fromstring(text)
    assert (root.tag, [suite.tag for suite in root]) == ("testsuites", ["testsuite"])
    cases = list(root[0])
    for case in cases:
        assert case.tag == "testcase" and case.get("classname") and case.get("name"), ElementTree.tostring(case)
        assert {part.tag for part in case} <= {"failure", "skipped", "system-out"} and len(case) <= 1
    counts = {"tests": len(cases), "errors": 0}
    counts |= {
        f"{tag}s".replace("skippeds", "skipped"): len(root.findall(f".//{tag}")) for tag in ("failure", "skipped")
    }
    assert {name: int(root[0].get(name, "-1")) for name in counts} == counts
    return cases


def sarif(text: str) -> list[dict[str, Any]]:
    """The results."""
    log = json.loads(text)
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json") and len(log["runs"]) == 1
    run = log["runs"][0]
    known = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert run["tool"]["driver"]["name"] == "patchctl" and len(known) == len(set(known))
    for result in run["results"]:
        assert result["ruleId"] in known and result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        for location in result["locations"]:
            physical, logical = location.get("physicalLocation"), location.get("logicalLocations")
            assert (physical is None) != (logical is None)
            if physical is not None and "uriBaseId" in physical["artifactLocation"]:
                assert physical["artifactLocation"]["uriBaseId"] in run["originalUriBaseIds"]
            assert all(place["fullyQualifiedName"] for place in logical or ())
    results: list[dict[str, Any]] = run["results"]
    return results


def github(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Level, properties and message of every command."""
    found = []
    for line in text.splitlines():
        command = COMMAND.fullmatch(line)
        assert command, line
        found.append((command[1], dict(p.split("=", 1) for p in command[2].split(",")), command[3]))
    return found


def gitlab(text: str) -> list[dict[str, Any]]:
    """The issues."""
    issues: list[dict[str, Any]] = json.loads(text)
    for issue in issues:
        assert set(issue) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert issue["description"] and issue["check_name"] and issue["location"]["path"]
        assert issue["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert isinstance(issue["location"]["lines"]["begin"], int) and issue["location"]["lines"]["begin"] >= 1
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)
    return issues
