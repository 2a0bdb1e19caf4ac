"""The machine's own variables against the rules and against the names that the documents of the practice use."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from patchctl.findings import Finding, looked_at
from patchctl.language import joined, message
from patchctl.manifest.types import Named
from patchctl.terminal.text import one_line
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.training.recipes.conditions import BadExpression, Facts, names_of
from patchctl.training.recipes.resolve import Resolved
from patchctl.training.recipes.rules import facts_of, verdict
from patchctl.training.recipes.types import RecipeRule

HARMLESS = "variables-that-nothing-reads"
"""The rule whose variables do nothing: what breaks it stops no run."""
_ALIKE = 0.88
# The environment of an NPU: where a misspelt name is worth a word.
_FAMILIES = re.compile(r"(HCCL|VLLM|TASK_QUEUE|PYTORCH_NPU|ASCEND|RAY|GLOO|MULTI_STREAM)_\w+")
LIBRARIES = "LD_LIBRARY_PATH"
_SCRIPTS = {"ASCEND_HOME_PATH": "ascend-toolkit/set_env.sh", "ATB_HOME_PATH": "nnal/atb/set_env.sh"}
_DRIVER_LIBRARIES = "/usr/local/Ascend/driver/lib64/driver"


def check_environment(case: Case) -> Iterator[Finding]:
    """Variables that break a rule, do nothing, are misspelt, or say another thing than the recipe."""
    own = case.environment
    if own is None:
        todo = message("record again in the shell that starts Ray")
        yield looked_at("environment", "variables", "unknown", case.machine.why_not(m.ENVIRONMENT), todo)
        return
    found = [
        *_against_rules(case, own),
        *_misspelt(case, own),
        *_overruled(case, own),
        *_libraries(case, own),
        *_sourced(case, own),
    ]
    yield from found
    if not found:
        what = message("{count} of frameworks, HCCL and Ray; none is in the way", count=len(own))
        yield looked_at("environment", "variables", "ok", what)


def _against_rules(case: Case, own: Mapping[str, str]) -> Iterator[Finding]:
    """Each variable alone beside the recipe: so every one that is in the way is named, and the recipe's own faults are not."""
    speaking = {rule_name: set(names_of(rule)) for rule_name, rule in case.all_rules.rules.items()}
    for name, value in own.items():
        if name in case.run.environment:
            continue  # the recipe says it, and comes last
        about = [rule_name for rule_name, names in speaking.items() if f"env.{name}" in names]
        environment = {**case.run.environment, name: Resolved(value, value, "the machine")}
        facts = facts_of(replace(case.run, environment=environment), case.all_rules) if about else case.facts
        for rule_name in about:
            rule = case.all_rules.rules[rule_name]
            if _breaks(rule, case.facts) is None and (what := _breaks(rule, facts)) is not None:
                yield _broken(case, name, value, rule_name, rule, what)


def _broken(case: Case, name: str, value: str, rule_name: str, rule: RecipeRule, what: str) -> Finding:
    named = _in_practice(case, name, value)
    instead = _instead(case, named) if named else None
    todo = message("unset {name}; {more}", name=name, more=instead or rule.hint)
    note = one_line(" ".join(named.note.split())) if named and named.note else rule.why.rstrip(".")
    if rule_name == HARMLESS:
        said = message("{setting} is set and does nothing here ({note})", setting=f"{name}={value}", note=note)
        return looked_at("environment", name, "warning", one_line(said), todo, needed=False)
    said = message("{says}: {what} ({note})", says=rule.says, what=what, note=note)
    return looked_at("environment", name, "error", one_line(said), todo)


def _in_practice(case: Case, name: str, value: str) -> Named | None:
    """What the documents of the practice mean by it."""
    switches = case.practice.switches if case.practice else {}
    return switches.get(f"{name}={value}") or next(
        (n for k, n in switches.items() if k.partition("=")[0] == name), None
    )


def _instead(case: Case, named: Named) -> str | None:
    """The switches of the features that do its work here."""
    features = [feature.partition("@")[0] for feature in named.features]
    names = [
        switch.name if switch.kind == "config" else message("{switch} (a variable)", switch=switch.name)
        for switch in case.switches
        if switch.feature in features
    ]
    return message("use {names}", names=joined(dict.fromkeys(names))) if names else None


def _breaks(rule: RecipeRule, facts: Facts) -> str | None:
    try:
        return verdict(rule, facts)
    except BadExpression as error:
        return error.what


def _misspelt(case: Case, own: Mapping[str, str]) -> Iterator[Finding]:
    """A name that no one knows and that is nearly one that is known."""
    rules = case.all_rules
    known = {*case.run.environment, *case.run.of_each_node, *rules.variables}
    told = {name for rule in rules.rules.values() for name in names_of(rule)}
    for name in own:
        if name in known or f"env.{name}" in told or not _FAMILIES.fullmatch(name):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
        if near:
            todo = message(
                "rename it where that is meant; it was compared with the names that are known here, and no others"
            )
            what = message("did you mean {name}?", name=near[0])
            yield looked_at("environment", name, "warning", what, todo, needed=False)


def _overruled(case: Case, own: Mapping[str, str]) -> Iterator[Finding]:
    """Ray's workers have the environment that `ray start` had: a value of another recipe in that shell would stay there."""
    for name, setting in case.run.environment.items():
        if name in own and setting.path is None and own[name] != setting.value:
            what = message("{here} here, {recipe} in the recipe", here=own[name], recipe=setting.value)
            on = f"@{case.run.release}" if case.run.release else ""
            todo = message(
                "{command} on every node before `ray start`",
                command=f'eval "$(patchctl recipe env {case.run.profile}/{case.run.name}{on})"',
            )
            yield looked_at("environment", name, "warning", one_line(what), todo, needed=False)


def _libraries(case: Case, own: Mapping[str, str]) -> Iterator[Finding]:
    if case.smi is not None and _DRIVER_LIBRARIES not in own.get(LIBRARIES, ""):
        what = message("without {names}", names=_DRIVER_LIBRARIES)
        paths = f"{_DRIVER_LIBRARIES}:/usr/local/Ascend/driver/lib64/common:/usr/local/lib"
        todo = message("-e {setting} in docker run", setting=f"{LIBRARIES}={paths}")
        yield looked_at("environment", LIBRARIES, "warning", what, todo, needed=False)


def _sourced(case: Case, own: Mapping[str, str]) -> Iterator[Finding]:
    """Without CANN's own variables libhccl.so, without ATB's libatb.so is not found (vllm-ascend#152, #262, #2727)."""
    lacking = [name for name in _SCRIPTS if not own.get(name)]
    if lacking and case.machine.text(m.CANN) is not None:
        what = message(
            "{scripts} were not sourced in this shell ({variables} not set)",
            scripts=joined((_SCRIPTS[name] for name in lacking), " and "),
            variables=joined(lacking),
        )
        todo = message(
            "ray_cluster.sh and train.sh source both where they lie below --cann; else source them before `ray start`"
        )
        yield looked_at("environment", "set_env.sh", "warning", what, todo, needed=False)
    if own.get("ATB_HOME_PATH", "").rstrip("/").endswith("cxx_abi_0"):
        what = message(
            "{path} is for the C++ interface of older wheels; torch's have the other one since 2.7",
            path=own["ATB_HOME_PATH"],
        )
        todo = message("source nnal/atb/set_env.sh --cxx_abi=1, where torch can be imported or not (Ascend/pytorch#99)")
        yield looked_at("environment", "ATB", "warning", what, todo, needed=False)
