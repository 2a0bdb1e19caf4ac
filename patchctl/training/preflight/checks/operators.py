"""What vllm-ascend has to have compiled, what MindSpeed compiles with, and CANN's architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchctl.findings.report import Finding, looked_at
from patchctl.language.messages import message
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.sizes import ROLLOUT

_MODULE = "vllm_ascend_C"
_BUILD = message(
    "an image of vllm-ascend as the base (docs/images.md, --in-place), or patchctl install --build-native with CANN"
    " (COMPILE_CUSTOM_KERNELS=1, vllm-ascend#733)"
)


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
    found = re.search(r"(?m)^\s*arch\s*=\s*(\S+)", text or "")
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
