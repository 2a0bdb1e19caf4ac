"""Every file in good/ is taken, in both of PyYAML's parsers; the .json beside it is what it means."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from patchctl.manifest.load import read
from patchctl.manifest.schema import models

GOOD = sorted((Path(__file__).parent / "good").glob("*.yaml"))


@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.stem)
@pytest.mark.parametrize("parser", ["libyaml", "python"])
def test_means_what_the_json_says(path: Path, parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if parser == "python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    value = read(path, models()[path.name.partition("-")[0]]).value
    assert dataclasses.asdict(value) == json.loads(path.with_suffix(".json").read_text())


def test_there_are_some() -> None:
    assert {p.name.partition("-")[0] for p in GOOD} == set(models())
