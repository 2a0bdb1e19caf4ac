"""What the tests of prepare_data.py, the rewards, weights.py and the conversions share: a pytest plugin of theirs.

The scripts run as programs, under the interpreter that has torch, and on the same upstream trees as the behaviour tests:
those of --trees, or of PATCHCTL_TREES, or built by patchctl.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import REPO, Upstream, clean_environment, torch_python
from trees import LazyTrees, Trees, built_trees, given_trees

TREES = "PATCHCTL_TREES"
TABLES = "tests/scripts/probe_tables.py"
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Scripts:
    """Runs scripts of the project, and probes on upstream's code, in one clean environment."""

    def __init__(self, trees: Trees, scratch: Path) -> None:
        self.trees, self.scratch = trees, scratch
        self.upstream = Upstream(trees, scratch)
        self.python = torch_python()

    def environment(self, need: Sequence[str] = (), standins: Sequence[str] = ()) -> dict[str, str]:
        return clean_environment(self.python, self.trees, need, standins, self.scratch)

    def run(
        self,
        script: str | Path,
        *args: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        need: Sequence[str] = (),
        standins: Sequence[str] = (),
        timeout: float = TIMEOUT_S,
    ) -> Ended:
        """A script under scripts/, or an absolute path; Python's under the interpreter that has torch."""
        path = REPO / "scripts" / script
        interpreter = [str(self.python)] if path.suffix == ".py" else ["bash"]
        done = subprocess.run(
            [*interpreter, str(path), *map(str, args)],
            cwd=cwd or self.scratch,
            env=self.environment(need, standins) | dict(env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def write_table(self, path: Path, rows: list[dict[str, Any]]) -> Path:
        """A parquet file of these rows; each may say how often it stands there, as `repeat`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        listed = path.with_suffix(".rows.json")
        listed.write_text(json.dumps(rows), encoding="utf-8")
        self.upstream.run(TABLES, "write", path, listed)
        listed.unlink()
        return path

    def read_table(self, *paths: Path) -> list[list[dict[str, Any]]]:
        """The rows of parquet files."""
        found: list[list[dict[str, Any]]] = self.upstream.run(TABLES, "read", *paths)
        return found


@pytest.fixture(scope="session")
def scripts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    given = request.config.getoption("--trees", default=None) or os.environ.get(TREES)
    trees = given_trees(Path(given)) if given else LazyTrees(lambda: built_trees(tmp_path_factory.mktemp("workspace")))
    return Scripts(trees, tmp_path_factory.mktemp("scripts"))
