"""What vllm-ascend has to have compiled, what MindSpeed compiles with, and CANN's architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchctl.findings.report import Finding, looked_at
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.sizes import ROLLOUT

_MODULE = "vllm_ascend_C"
_BUILD = (
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
        todo = "--python PY, the Python that trains; on a recording: record again"
        return looked_at("software", name, "error" if lacks else "unknown", case.machine.why_not(m.OPERATORS), todo)
    python, place = found.get("python"), found.get("vllm_ascend")
    if not isinstance(place, str):
        return looked_at("software", name, "error", f"{python} finds no vllm_ascend", f"install it: {_BUILD}")
    compiled = found.get("compiled")
    names = [str(n) for n in compiled] if isinstance(compiled, list) else []
    if any(n.startswith(_MODULE) for n in names):
        return looked_at("software", name, "ok", f"{_MODULE} in {place}")
    if case.off(f"{ROLLOUT}.free_cache_engine"):
        what = f"no {_MODULE} in {place}: the engine falls back where it can, and sleep mode is off"
        return looked_at("software", name, "warning", what, _BUILD, needed=False)
    what = f"no {_MODULE} in {place}: sleep mode ({ROLLOUT}.free_cache_engine) ends at its first use of it"
    return looked_at("software", name, "error", what, _BUILD)


def _compiler(case: Case) -> Iterator[Finding]:
    """MindSpeed's operators are built by torch.utils.cpp_extension where one is used first (mindspeed/op_builder/builder.py)."""
    found = case.machine.data(m.OPERATORS)
    if case.text("actor_rollout_ref.actor.strategy") != "megatron" or not isinstance(found, dict):
        return
    name = "C++ compiler"
    if "compiler" not in found:
        what = f"{m.OPERATORS} in {case.machine.place} does not tell; it was recorded by an older patchctl"
        yield looked_at("software", name, "unknown", what, "record again", needed=False)
    elif found["compiler"] is None:
        what = "none: neither CXX nor c++ is there, and MindSpeed compiles its operators at their first use"
        todo = "install g++ on every node (an image: scripts/build_image.sh --compilers)"
        yield looked_at("software", name, "warning", what, todo, needed=False)
    else:
        yield looked_at("software", name, "ok", f"{found['compiler']}, for MindSpeed's operators")


def _architecture(case: Case) -> Iterator[Finding]:
    text, kernel = case.machine.text(m.CANN), case.machine.text(m.KERNEL)
    found = re.search(r"(?m)^\s*arch\s*=\s*(\S+)", text or "")
    if found is None:
        return  # CANN itself is told elsewhere
    name, words = "architecture", (kernel or "").split()
    if not words:
        why = case.machine.why_not(m.KERNEL)
        yield looked_at("software", name, "unknown", f"CANN is for {found[1]}; {why}", needed=False)
    elif words[-1] != found[1]:
        todo = f"install CANN's toolkit for {words[-1]}"
        yield looked_at("software", name, "error", f"CANN is for {found[1]}, and this machine is {words[-1]}", todo)
    else:
        yield looked_at("software", name, "ok", f"CANN is for {found[1]}, as is this machine")
