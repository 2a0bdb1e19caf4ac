"""The page of parameters against the patched verl: every key is there, and every default is that of the configuration.

Two things are composed with Hydra for each configuration: the configuration as it is, and with every key overridden by null,
which fails for a key that is not declared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import REPO, Upstream
from test_recipes import Of, equal, job, probed

pytestmark = pytest.mark.stack("verl", "<0.9")

PROBE = "tests/behaviour/verl/probe_recipes.py"
MODULES = {"ppo_trainer": "verl.trainer.main_ppo", "dapo_trainer": "recipe.dapo.main_dapo"}
PAGE = REPO / "docs" / "practice" / "parameters.md"
_VALUE = r"(?:`[^`]*`|none(?:: give one)?)"
# | `KEY` | `DEFAULT` |, where DAPO has another one: `DEFAULT`; `OTHER` in `dapo_trainer`
_ROW = re.compile(
    rf"\| `(?P<key>[^`]+)` \| (?P<default>{_VALUE})(?:; (?P<dapo>{_VALUE}) in `dapo_trainer`)?"
    r"(?P<only> \(`dapo_trainer` alone has it\))? \| \S.* \|"
)


@dataclass(frozen=True)
class Parameter:
    """A key's default by the page, null for none and ??? where one has to be given; `dapo` where dapo_trainer has another."""

    default: str
    dapo: str | None
    only: str | None


def read(page: str) -> dict[str, Parameter]:
    """Every row of the page's tables by its key."""
    found = {}
    for line in page.splitlines():
        if line.startswith("| `"):
            row = _ROW.fullmatch(line)
            assert row is not None, line
            dapo = plain(row["dapo"]) if row["dapo"] else None
            assert row["key"] not in found, f"{row['key']} stands twice"
            found[row["key"]] = Parameter(plain(row["default"]), dapo, "dapo_trainer" if row["only"] else None)
    return found


def plain(shown: str) -> str:
    return {"none": "null", "none: give one": "???"}.get(shown) or shown.strip("`")


PARAMETERS = read(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def composed(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Of:
    jobs: dict[str, dict[str, Any]] = {}
    for config, module in MODULES.items():
        keys = list(of(config))
        jobs[config] = job(module, config, [], keys)
        jobs[f"{config} declared"] = job(module, config, [f"{key}=null" for key in keys], [])
        for key in PARAMETERS.keys() - of(config).keys():
            jobs[f"{config} {key}"] = job(module, config, [f"{key}=null"], [])
    file: Path = tmp_path_factory.mktemp("parameters") / "jobs.json"
    return probed(upstream, jobs, file, PROBE)


def of(config: str) -> dict[str, Parameter]:
    """The parameters that a configuration has."""
    return {key: found for key, found in PARAMETERS.items() if found.only in (None, config)}


def default(key: str, config: str) -> str:
    """A default by the page: another key's where it begins with =, nothing where one has to be given."""
    found = PARAMETERS[key]
    text = found.dapo if config == "dapo_trainer" and found.dapo is not None else found.default
    if text.startswith("="):
        return default(text[1:].strip(), config)
    return "null" if text == "???" else text


@pytest.mark.parametrize("config", MODULES)
def test_every_key_is_declared(composed: Of, config: str) -> None:
    assert composed(f"{config} declared")["error"] is None


@pytest.mark.parametrize("key", sorted(PARAMETERS.keys() - of("ppo_trainer").keys()))
def test_a_key_of_dapo_alone_is_refused_by_the_other(composed: Of, key: str) -> None:
    assert "Could not override" in composed(f"ppo_trainer {key}")["error"]


@pytest.mark.parametrize("config", MODULES)
def test_the_defaults_are_those_of_the_configuration(composed: Of, config: str) -> None:
    found = composed(config)
    assert found["error"] is None
    wrong = {
        key: (default(key, config), found["values"][key])
        for key in of(config)
        if not as_written(default(key, config), found["values"][key], found["values"])
    }
    assert wrong == {}


def as_written(text: str, value: Any, values: dict[str, Any]) -> bool:
    if isinstance(value, list):
        return text.strip("[]").split(",") == value
    for key, other in values.items():
        text = text.replace(f"${{{key}}}", str(other))
    return equal(text, value)


def test_what_has_to_be_given_is_none_before(composed: Of) -> None:
    required = [key for key, parameter in PARAMETERS.items() if parameter.default == "???"]
    assert required == ["actor_rollout_ref.rollout.name"]
    assert composed("ppo_trainer")["values"][required[0]] is None
