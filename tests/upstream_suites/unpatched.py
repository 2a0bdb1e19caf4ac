"""What upstream's suites gave on the unpatched trees, by digest: while trees, environment and suite are the same they need not run
again. A digest of the outcomes is enough: where the patched tree gives another one, the unpatched tree is run and compared."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import STANDINS
from suite_runs import SUITES, Suite

PACKAGES = """
import importlib.metadata as m, json, platform
found = sorted({f"{one.name}=={one.version}" for one in m.distributions()})
print(json.dumps([platform.python_version(), platform.machine(), *found]))
"""


class Unpatched:
    """The records in `file`, of an environment and of trees by their ids."""

    def __init__(self, file: Path, python: Path, trees: Mapping[str, str]) -> None:
        self._file = file
        self._one_at_a_time = threading.Lock()
        self._trees = trees
        self._environment = subprocess.run(
            [str(python), "-c", PACKAGES], check=True, capture_output=True, text=True
        ).stdout
        self._records: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def same(self, suite: Suite, outcomes: Mapping[str, str]) -> bool:
        """Whether these are what the suite gave on the unpatched trees."""
        return self._records.get(self._key(suite), {}).get("outcomes") == _digest(outcomes)

    def knows(self, suite: Suite) -> bool:
        return self._key(suite) in self._records

    def keep(self, suite: Suite, outcomes: Mapping[str, str]) -> None:
        """Write what a run has shown, in the place of what other trees or another environment gave for the suite."""
        with self._one_at_a_time:
            self._records = {key: one for key, one in self._records.items() if one["suite"] != suite.name}
            self._records[self._key(suite)] = {"suite": suite.name, "outcomes": _digest(outcomes)}
            self._file.write_text(json.dumps(self._records, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def _key(self, suite: Suite) -> str:
        folders = [STANDINS / name for name in suite.standins] + [SUITES / "plugins" / suite.plugin] * bool(
            suite.plugin
        )
        files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
        made = {
            file.relative_to(SUITES.parents[1]).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
        }
        asked = {
            key: value for key, value in asdict(suite).items() if key not in ("switches", "timeout", "slow", "partial")
        }
        return _digest([asked, [self._trees[name] for name in suite.upstreams], made, self._environment])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
