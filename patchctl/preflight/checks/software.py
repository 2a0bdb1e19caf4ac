"""Driver, CANN, Python and packages against what the profile was chosen for; compile caches that are older than CANN."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from patchctl.doctor.runtime import fits, info_version
from patchctl.preflight import Finding
from patchctl.preflight import machine as m
from patchctl.preflight.caches import Cache, caches_of
from patchctl.preflight.case import Case
from patchctl.preflight.read import packages, python_version, same_name
from patchctl.report.progress import size_text

_DAY = 86400
_TODO = {
    "driver": "install Ascend HDK {wanted} on the host: driver and firmware together, then restart it",
    "cann": "install CANN {wanted} and source its set_env.sh, or use an image that has it",
    "python": "run training in a Python {wanted}, and name it with --python",
}
_COMPATIBLE = "look it up in CANN's table of versions (hiascend.com/document/detail/zh/canncommercial/850/releasenote/releasenote_0000.html)"
INFO_FILE = "ascend_toolkit_install.info"


def check_software(case: Case) -> Iterator[Finding]:
    """One finding for everything that the profile names, and one for the caches."""
    for name, wanted in case.wanted.items():
        yield _compared(case, name, wanted)
    yield from _caches(case)


def _compared(case: Case, name: str, wanted: str) -> Finding:
    found, missing, probe = _version(case, name)
    todo = _TODO.get(name, f"install {name} {{wanted}} in the training environment").format(wanted=wanted)
    if (
        found is None
        and (missing is None or not case.machine.known_to_lack(probe))
        and case.machine.text(probe) is None
    ):
        return Finding("software", name, "unknown", f"{wanted} is wanted; {case.machine.why_not(probe)}", todo)
    if found is None:
        return Finding("software", name, "wrong", f"{wanted} is wanted; {missing or 'it is not there'}", todo)
    if not fits(found, wanted) and name == "driver":
        what = f"{found}; {wanted} is what was trained with, and 002 allows other versions that go with CANN"
        return Finding("software", name, "warning", what, f"{_COMPATIBLE}; or {todo}", needed=False)
    if not fits(found, wanted):
        return Finding("software", name, "wrong", f"{found}; {wanted} is wanted", f"{todo}; or --accept {name}")
    return Finding("software", name, "ok", f"{found}; {wanted} is wanted")


def _version(case: Case, name: str) -> tuple[str | None, str | None, str]:
    """The version, why there is none, and the probe that tells."""
    machine = case.machine
    requirement = case.requirements.get(name)
    if requirement is not None and requirement.kind == "python":
        text = machine.text(m.PACKAGES)
        if text is None:
            return None, machine.why_not(m.PACKAGES), m.PACKAGES
        known = packages(text)
        why = (
            "the list of packages cannot be read"
            if known is None
            else "not among the packages of the training environment"
        )
        return (known or {}).get(same_name(requirement.distribution or name)), why, m.PACKAGES
    if name == "python":
        text = machine.text(m.PYTHON)
        return (python_version(text) if text else None), machine.why_not(m.PYTHON), m.PYTHON
    if name == "cann":
        text = machine.text(m.CANN)
        return (info_version(text) if text else None), machine.why_not(m.CANN), m.CANN
    if name == "driver":
        text = machine.text(m.DRIVER)
        version = info_version(text) if text else (case.smi.version if case.smi else None)
        return version, machine.why_not(m.DRIVER), m.DRIVER
    return None, "how to look for it is not known", m.PACKAGES


def cann_time(case: Case) -> float | None:
    """When CANN was installed, by the file that its installer wrote."""
    found = case.machine.data(m.PATHS)
    places = found if isinstance(found, dict) else {}
    times = [v.get("modified") for k, v in places.items() if k.endswith(INFO_FILE) and isinstance(v, dict)]
    return float(times[0]) if times and isinstance(times[0], (int, float)) else None


def old_caches(case: Case) -> list[Cache]:
    """The caches with a file that is older than CANN; none where CANN's age is not known."""
    installed = cann_time(case)
    caches = caches_of(case.machine.data(m.CACHES)) or []
    return [] if installed is None else [c for c in caches if c.oldest < installed]


def _caches(case: Case) -> Iterator[Finding]:
    caches = caches_of(case.machine.data(m.CACHES))
    if caches is None:
        yield Finding(
            "software", "compile caches", "unknown", case.machine.why_not(m.CACHES), "record again", needed=False
        )
        return
    if not caches:
        yield Finding("software", "compile caches", "ok", "none")
    installed = cann_time(case)
    todo = "--clear-caches takes it away, after a question; downloads of models are kept"
    for cache in caches:
        days = (case.machine.time - cache.modified) / _DAY
        what = f"{cache.path}: {size_text(cache.bytes)}, last written {days:.1f} days ago"
        if installed is None:
            what += "; when CANN was installed is not known"
            by_hand = f"after a change of CANN: rm -r {shlex.quote(cache.path)}"
            yield Finding("software", "compile caches", "warning", what, by_hand)
        elif cache.oldest < installed:
            age = (installed - cache.oldest) / _DAY
            what += f", its oldest file {age:.1f} days before this CANN"
            yield Finding("software", "compile caches", "warning", what, todo)
        else:
            yield Finding("software", "compile caches", "ok", f"{what}, after this CANN was installed")
