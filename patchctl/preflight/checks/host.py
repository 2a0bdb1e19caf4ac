"""The host: shared memory, open files, and the memory of the controller."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from patchctl.manifest.recipe_types import Rule
from patchctl.preflight import Finding
from patchctl.preflight import machine as m
from patchctl.preflight.case import Case
from patchctl.preflight.read import memory_limit, memory_total, mount_of, mounts, open_files
from patchctl.recipe.arithmetic import BadExpression, sides
from patchctl.recipe.conditions import Facts
from patchctl.report.progress import size_text

GIB = 1 << 30
SHARED_MEMORY = 720 * GIB  # --shm-size of 003's container
LEAST_SHARED_MEMORY = GIB  # a container's default is 64 MiB
OPEN_FILES = 32768  # 003, 4.5
RULE = "controller-memory"
# 000's limit is for a host of 2 TiB, of which its own batch takes half; the kernel keeps up to a tenth of that memory.
WELL_WITHIN = Fraction(11, 20)
BATCH = "data.train_batch_size"


def check_host(case: Case) -> Iterator[Finding]:
    """What Ray and the controller need of the host."""
    yield _shared_memory(case)
    yield _open_files(case)
    yield from _controller(case)


def _shared_memory(case: Case) -> Finding:
    text = case.machine.text(m.DISKS)
    if text is None:
        return Finding("host", "/dev/shm", "unknown", case.machine.why_not(m.DISKS), "record again, with `df` on PATH")
    found = mount_of("/dev/shm", mounts(text))
    todo = "docker run --shm-size 720g (003, 4.2), or -v /dev/shm:/dev/shm (002)"
    if found is None or found.point != "/dev/shm":
        return Finding("host", "/dev/shm", "wrong", "no file system is mounted there", todo)
    what = f"{size_text(found.total)}, {size_text(found.free)} free; 003 has {size_text(SHARED_MEMORY)}"
    if found.total < LEAST_SHARED_MEMORY:
        return Finding("host", "/dev/shm", "wrong", what, f"Ray's objects do not fit: {todo}")
    if found.total < SHARED_MEMORY:
        return Finding("host", "/dev/shm", "warning", what, todo)
    return Finding("host", "/dev/shm", "ok", what)


def _open_files(case: Case) -> Finding:
    text = case.machine.text(m.LIMITS)
    found = open_files(text) if text is not None else None
    todo = f"ulimit -n {OPEN_FILES} in the shell that starts Ray (003, 4.5), or docker run --ulimit nofile={OPEN_FILES}"
    if found is None:
        return Finding("host", "open files", "unknown", case.machine.why_not(m.LIMITS), todo)
    if 0 <= found < OPEN_FILES:
        return Finding("host", "open files", "wrong", f"{found} at most; {OPEN_FILES} are wanted", todo)
    return Finding("host", "open files", "ok", "without limit" if found < 0 else str(found))


def _controller(case: Case) -> Iterator[Finding]:
    """000's formula, as the rule has it, against this machine's memory: one writing of the arithmetic."""
    rule = case.all_rules.rules.get(RULE)
    if rule is None or not rule.must.holds:
        return
    try:
        needed = _needed(rule, case.facts)
    except BadExpression as error:
        yield Finding("host", "controller memory", "unknown", f"cannot be computed: {error}", needed=False)
        return
    has, of = host_memory(case)
    what = f"{size_text(needed)} are collected on the first node, besides what all else there needs"
    if has is None:
        todo = f"look whether it has as much; {rule.hint}"
        yield Finding("host", "controller memory", "unknown", f"{what}; {of}", todo)
        return
    what = f"{what}; {of} is {size_text(has)}"
    budget, share = int(has * WELL_WITHIN), f"{float(WELL_WITHIN):.0%}"
    batch = _largest_batch(case, rule, budget)
    advice = f"the largest power of two whose data takes {share} of it at most is {BATCH}={batch}; {rule.hint}"
    if needed > has:
        yield Finding("host", "controller memory", "wrong", what, advice)
    elif needed > budget:
        yield Finding("host", "controller memory", "warning", f"{what}: more than {share}", advice)
    else:
        yield Finding("host", "controller memory", "ok", what)


def _needed(rule: Rule, facts: Facts) -> int:
    """The rule's left side, in bytes."""
    return int(sides(rule.must.holds[0], facts.number)[0])


def _largest_batch(case: Case, rule: Rule, budget: int) -> int:
    """The largest power of two for the batch that stays within a budget; the formula is a multiple of the batch."""

    def of_one(name: str) -> Fraction:
        return Fraction(1) if name == BATCH else case.facts.number(name)

    each = int(sides(rule.must.holds[0], of_one)[0])
    fits = budget // max(1, each)
    return 1 << (int(fits).bit_length() - 1) if fits else 0


def host_memory(case: Case) -> tuple[int | None, str]:
    """What the machine or its container has, and which of both that is."""
    text = case.machine.text(m.MEMORY)
    total = memory_total(text) if text is not None else None
    limit = memory_limit(case.machine.text(m.MEMORY_LIMIT) or "")
    if total is None and limit is None:
        return None, case.machine.why_not(m.MEMORY)
    if limit is not None and (total is None or limit < total):
        return limit, "the container's limit"
    return total, "the memory of the machine"
