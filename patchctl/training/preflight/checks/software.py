"""Driver, CANN, Python and packages against what the profile was chosen for, all other packages against the lock of its requirements; compile
caches that are older than CANN; compiled operators of vllm-ascend, what MindSpeed compiles with, and CANN's architecture."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from patchctl.doctor.runtime import fits, info_version
from patchctl.errors import WrongUse
from patchctl.findings import Finding, judged, looked_at
from patchctl.language import Translatable, joined, message
from patchctl.manifest.requirement_types import Platform
from patchctl.manifest.types import profile_options
from patchctl.requirements.interpreter import PackageDifference, RequiredPackages, compare, summary
from patchctl.requirements.lockfile import this_platform
from patchctl.terminal.progress import size_text
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.caches import Cache, caches_of
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.sizes import ROLLOUT

_DAY = 86400
_ARCHITECTURE = re.compile(r"(?m)^\s*arch\s*=\s*(\S+)")
_SHOWN = 8
INFO_FILE = "ascend_toolkit_install.info"
_MODULE = "vllm_ascend_C"
_BUILD = message(
    "an image of vllm-ascend as the base (docs/images.md, --in-place), or patchctl install --build-native with CANN"
    " (COMPILE_CUSTOM_KERNELS=1, vllm-ascend#733)"
)


def check_software(case: Case) -> Iterator[Finding]:
    """One finding for everything that the profile names, for each other package that can stop a run, and for the caches."""
    for name, wanted in case.wanted.items():
        yield _compared(case, name, wanted)
    yield from _packages(case)
    yield from _caches(case)


def _compared(case: Case, name: str, wanted: str) -> Finding:
    found, why, probe = _version(case, name)
    todo = _installs(name, wanted)
    if found is None:
        looked = case.machine.text(probe) is not None or case.machine.known_to_lack(probe)
        why = (why or message("it is not there")) if looked else case.machine.why_not(probe)
        what = message("{wanted} is wanted; {why}", wanted=wanted, why=why)
        return looked_at("software", name, "error" if looked else "unknown", what, todo)
    if not fits(found, wanted) and name == "driver":
        what = message(
            "{found}; {wanted} is the release's, and the practice allows other versions that go with CANN",
            found=found,
            wanted=wanted,
        )
        todo = message(
            "look it up in the table of versions in the release notes of CANN {cann} (hiascend.com/document); or "
            "{todo}",
            cann=case.wanted.get("cann", message("of the profile")),
            todo=todo,
        )
        return looked_at("software", name, "warning", what, todo, needed=False)
    what = message("{found}; {wanted} is wanted", found=found, wanted=wanted)
    return judged("software", name, "ok" if fits(found, wanted) else "error", what, _or_accept(todo, name))


def _installs(name: str, wanted: str) -> Translatable:
    if name == "driver":
        return message(
            "install Ascend HDK {wanted} on the host: driver and firmware together, then restart it", wanted=wanted
        )
    if name == "cann":
        return message("install CANN {wanted} and source its set_env.sh, or use an image that has it", wanted=wanted)
    if name == "python":
        return message("run training in a Python {wanted}, and name it with --python", wanted=wanted)
    return message("install {name} {wanted} in the training environment", name=name, wanted=wanted)


def _or_accept(todo: str, name: str) -> Translatable:
    return message("{todo}; or --accept {name}", todo=todo, name=name)


_READERS = {"python": (m.PYTHON, m.python_version), "cann": (m.CANN, info_version), "driver": (m.DRIVER, info_version)}


def _version(case: Case, name: str) -> tuple[str | None, str, str]:
    """The version, why there is none, and the probe that tells."""
    requirement = case.requirements.get(name)
    if requirement is not None and requirement.kind == "python":
        text = case.machine.text(m.PACKAGES)
        if text is None:
            return None, case.machine.why_not(m.PACKAGES), m.PACKAGES
        known = m.packages(text)
        why = message("not among the packages of the training environment")
        if known is None:
            why = message("the list of packages cannot be read")
        return (known or {}).get(m.same_name(requirement.distribution or name)), why, m.PACKAGES
    if name not in _READERS:
        return None, message("how to look for it is not known"), m.PACKAGES
    probe, read = _READERS[name]
    text = case.machine.text(probe)
    version = case.driver if name == "driver" else read(text or "")
    return version, case.machine.why_not(probe) if text is None else message("its file names no version"), probe


def _packages(case: Case) -> Iterator[Finding]:
    """The packages that the profile does not name itself. Without a list of packages those that it names have said so."""
    known = m.packages(case.machine.text(m.PACKAGES) or "")
    if case.packages is None or known is None:
        return
    own = {m.same_name(r.distribution or n) for n, r in case.requirements.items() if n in case.wanted}
    wanted = RequiredPackages.read(case.packages, _platform(case))
    found = compare(known, wanted, needs=case.run.needs_packages, less=own)
    matter = [d for d in found if d.matters]
    for one in matter[:_SHOWN]:
        yield looked_at("software", one.name, "error", one.described(), _or_accept(_cure(one, wanted), one.name))
    options = profile_options(case.run.profile, case.run.release)
    lock = message("install on every node what patchctl requirements {options} prints", options=options)
    if len(matter) > _SHOWN:
        what = message("and besides those: {packages}", packages=summary(matter[_SHOWN:]))
        yield looked_at("software", "packages", "error", what, _or_accept(lock, "packages"))
    others = [d for d in found if not d.matters]
    if any(d.kind in ("missing", "excluded") for d in others):
        yield looked_at("software", "other packages", "warning", summary(others), lock)
    else:
        same = message("{count} packages are compared with the lock", count=len(wanted.lock.packages))
        what = joined([same, summary(others)], "; ") if others else same
        yield looked_at("software", "other packages", "ok", what)


def _cure(one: PackageDifference, wanted: RequiredPackages) -> str:
    if one.locked is not None:
        return message(
            "in the training environment, on every node: {command}", command=f"pip install {one.name}=={one.locked}"
        )
    cure = message("in the training environment, on every node: {command}", command=f"pip uninstall -y {one.name}")
    hidden = wanted.lock.packages.get(f"{one.name}-ascend")  # which has the same files, and lost them
    if hidden is None:
        return cure
    again = f"pip install --force-reinstall --no-deps {hidden.name}=={hidden.version}"
    return joined([cure, again], "; ")


def _platform(case: Case) -> Platform:
    """That of the machine's CANN, which a recording has; else this one's. Locks differ in builds, not in versions."""
    arch = _ARCHITECTURE.search(case.machine.text(m.CANN) or "")
    try:
        return this_platform(arch[1] if arch else None)
    except WrongUse:
        return "aarch64"


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
        todo = message("record again")
        why = case.machine.why_not(m.CACHES)
        yield looked_at("software", "compile caches", "unknown", why, todo, needed=False)
        return
    if not caches:
        yield looked_at("software", "compile caches", "ok", message("none"))
    installed = cann_time(case)
    todo = message("--clear-caches takes it away, after a question; downloads of models are kept")
    for cache in caches:
        days = (case.machine.time - cache.modified) / _DAY
        what = message(
            "{path}: {size}, last written {days} days ago",
            path=cache.path,
            size=size_text(cache.bytes),
            days=f"{days:.1f}",
        )
        if installed is None:
            what = message("{what}; when CANN was installed is not known", what=what)
            by_hand = message("after a change of CANN: {command}", command=f"rm -r {shlex.quote(cache.path)}")
            yield looked_at("software", "compile caches", "warning", what, by_hand)
        elif cache.oldest < installed:
            age = f"{(installed - cache.oldest) / _DAY:.1f}"
            what = message("{what}, its oldest file {days} days before this CANN", what=what, days=age)
            yield looked_at("software", "compile caches", "warning", what, todo)
        else:
            what = message("{what}, after this CANN was installed", what=what)
            yield looked_at("software", "compile caches", "ok", what)


def check_operators(case: Case) -> Iterator[Finding]:
    """Compiled operators, a compiler, and whether CANN is for this machine's processor."""
    yield _compiled(case)
    yield from _compiler(case)
    yield from _architecture(case)


def _compiled(case: Case) -> Finding:
    """Without the module camem's init_module is None, and sleep mode calls it (camem.py; vllm-ascend#556, #3998)."""
    name, found = "compiled operators", case.machine.data(m.OPERATORS)
    if not isinstance(found, dict):
        lacks = case.machine.known_to_lack(m.OPERATORS)
        todo = message("--python PY, the Python that trains; on a recording: record again")
        return looked_at("software", name, "error" if lacks else "unknown", case.machine.why_not(m.OPERATORS), todo)
    python, place = found.get("python"), found.get("vllm_ascend")
    if not isinstance(place, str):
        what, todo = (
            message("{python} finds no vllm_ascend", python=python),
            message("install it: {build}", build=_BUILD),
        )
        return looked_at("software", name, "error", what, todo)
    compiled = found.get("compiled")
    names = [str(n) for n in compiled] if isinstance(compiled, list) else []
    if any(n.startswith(_MODULE) for n in names):
        return looked_at("software", name, "ok", message("{module} in {place}", module=_MODULE, place=place))
    if case.off(f"{ROLLOUT}.free_cache_engine"):
        what = message(
            "no {module} in {place}: the engine falls back where it can, and sleep mode is off",
            module=_MODULE,
            place=place,
        )
        return looked_at("software", name, "warning", what, _BUILD, needed=False)
    what = message(
        "no {module} in {place}: sleep mode ({key}) ends at its first use of it",
        module=_MODULE,
        place=place,
        key=f"{ROLLOUT}.free_cache_engine",
    )
    return looked_at("software", name, "error", what, _BUILD)


def _compiler(case: Case) -> Iterator[Finding]:
    """MindSpeed's operators are built by torch.utils.cpp_extension where one is used first (mindspeed/op_builder/builder.py)."""
    found = case.machine.data(m.OPERATORS)
    if case.text("actor_rollout_ref.actor.strategy") != "megatron" or not isinstance(found, dict):
        return
    name = "C++ compiler"
    if "compiler" not in found:
        what = message(
            "{file} in {machine} does not tell; it was recorded by an older patchctl",
            file=m.OPERATORS,
            machine=case.machine.place,
        )
        yield looked_at("software", name, "unknown", what, message("record again"), needed=False)
    elif found["compiler"] is None:
        what = message("none: neither CXX nor c++ is there, and MindSpeed compiles its operators at their first use")
        todo = message("install g++ on every node (an image: scripts/build_image.sh --compilers)")
        yield looked_at("software", name, "warning", what, todo, needed=False)
    else:
        what = message("{compiler}, for MindSpeed's operators", compiler=found["compiler"])
        yield looked_at("software", name, "ok", what)


def _architecture(case: Case) -> Iterator[Finding]:
    text, kernel = case.machine.text(m.CANN), case.machine.text(m.KERNEL)
    found = _ARCHITECTURE.search(text or "")
    if found is None:
        return  # CANN itself is told elsewhere
    name, words = "architecture", (kernel or "").split()
    if not words:
        why = case.machine.why_not(m.KERNEL)
        what = message("CANN is for {arch}; {why}", arch=found[1], why=why)
        yield looked_at("software", name, "unknown", what, needed=False)
    elif words[-1] != found[1]:
        todo = message("install CANN's toolkit for {arch}", arch=words[-1])
        what = message("CANN is for {arch}, and this machine is {own}", arch=found[1], own=words[-1])
        yield looked_at("software", name, "error", what, todo)
    else:
        yield looked_at("software", name, "ok", message("CANN is for {arch}, as is this machine", arch=found[1]))
