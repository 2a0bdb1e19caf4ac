"""The host: shared memory, open files, and the memory of the controller."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from packaging.version import Version

from patchctl.findings import Finding, judged, looked_at
from patchctl.language import joined, message
from patchctl.terminal.progress import size_text
from patchctl.training.models import Model
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.checks.ray import V1, controller_of
from patchctl.training.preflight.sizes import BadSizes, training_of

GIB = 1 << 30
SHARED_MEMORY = 720 * GIB  # --shm-size of 003's container
LEAST_SHARED_MEMORY = GIB  # a container's default is 64 MiB
OPEN_FILES = 32768  # 003, 4.5
# verl#719 got through with 16,384; ray#44296 did not with 65,536 on 192 cores. The upper one is ours.
FEWEST_PROCESSES, PROCESSES = 16384, 131072
KEPT_SHARE = Fraction(1, 20)  # of the memory; ours
# Ray ends workers when a node uses more (docs.ray.io, memory_usage_threshold).
RAY_KILLS_ABOVE = Fraction(95, 100)
# Ours: the rest is for the processes themselves, 16 workers and what they load, and for the kernel.
WELL_WITHIN = Fraction(3, 4)
BATCH = "data.train_batch_size"
BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
_SHARES_MEMORY = "25.3.rc1"


def check_host(case: Case) -> Iterator[Finding]:
    """What Ray and the controller need of the host."""
    yield _shared_memory(case)
    yield _open_files(case)
    yield _processes(case)
    yield _locked_memory(case)
    yield from _user(case)
    yield from _huge_pages(case)
    yield from _controller(case)


def _shared_memory(case: Case) -> Finding:
    text = case.machine.text(m.DISKS)
    if text is None:
        again = message("record again, with `df` on PATH")
        return looked_at("host", "/dev/shm", "unknown", case.machine.why_not(m.DISKS), again)
    found = m.mount_of("/dev/shm", m.mounts(text))
    todo = message("give docker run --shm-size 720g, or -v /dev/shm:/dev/shm")
    if found is None or found.point != "/dev/shm":
        return looked_at("host", "/dev/shm", "error", message("no file system is mounted there"), todo)
    what = message(
        "{total}, {free} free; the practice's containers have {wanted}",
        total=size_text(found.total),
        free=size_text(found.free),
        wanted=size_text(SHARED_MEMORY),
    )
    if found.total < LEAST_SHARED_MEMORY:
        return looked_at("host", "/dev/shm", "error", what, message("Ray's objects do not fit: {todo}", todo=todo))
    buckets = _buckets_in_shared_memory(case)
    if found.total < buckets:
        what = message(
            "{what}; a driver below {version} moves weights through it, {size} at once",
            what=what,
            version=_SHARES_MEMORY,
            size=size_text(buckets),
        )
        todo = message("{todo}; or install that driver on the host", todo=todo)
        return looked_at("host", "/dev/shm", "error", what, todo)
    return judged("host", "/dev/shm", "warning" if found.total < SHARED_MEMORY else "ok", what, todo)


def _buckets_in_shared_memory(case: Case) -> int:
    """Bytes of the weights that are under way at once where devices cannot share memory: a bucket a rank (verl v0.9.0,
    utils/device.py, check_ipc_version_support; vllm_rollout/bucketed_weight_transfer.py)."""
    driver = re.match(r"\d+\.\d+(?:\.(?:rc\d+|\d+))?", case.driver or "")
    if not case.is_of("verl", ">=0.9") or driver is None or Version(driver[0]) >= Version(_SHARES_MEMORY):
        return 0
    return case.devices_per_node * (case.number(BUCKET) or 2048) * (1 << 20)


def _open_files(case: Case) -> Finding:
    text = case.machine.text(m.LIMITS)
    found = m.limit(text, "Max open files") if text is not None else None
    todo = message(
        "ulimit -n {count} in the shell that starts Ray, or docker run --ulimit nofile={count}",
        count=OPEN_FILES,
    )
    if found is None:
        return looked_at("host", "open files", "unknown", case.machine.why_not(m.LIMITS), todo)
    if 0 <= found < OPEN_FILES:
        what = message("{found} at most; {wanted} are wanted", found=found, wanted=OPEN_FILES)
        return looked_at("host", "open files", "error", what, todo)
    return looked_at("host", "open files", "ok", message("without limit") if found < 0 else str(found))


def _processes(case: Case) -> Finding:
    """Each of Ray's workers has a hundred threads and more; a limit that is met ends in pthread_create (verl#719, ray#36936)."""
    text, pids = case.machine.text(m.LIMITS), case.machine.text(m.PIDS)
    of_container = message("the container's pids.max")
    limits = {"ulimit -u": m.limit(text or "", "Max processes"), of_container: m.memory_limit(pids or "")}
    found = {name: count for name, count in limits.items() if count is not None and count >= 0}
    name = "processes"
    todo = message("ulimit -u {count} in the shell that starts Ray; docker run --pids-limit -1", count=PROCESSES)
    if text is None:
        return looked_at("host", name, "unknown", case.machine.why_not(m.LIMITS), todo, needed=False)
    if not found:
        return looked_at("host", name, "ok", message("without limit"))
    which, least = min(found.items(), key=lambda row: row[1])
    what = message("{count} at most ({which})", count=least, which=which)
    if least < FEWEST_PROCESSES:
        what = message("{what}; threads count, and Ray starts thousands", what=what)
        return looked_at("host", name, "error", what, todo)
    if least < PROCESSES:
        what = message("{what}; {count} are advised", what=what, count=PROCESSES)
        return looked_at("host", name, "warning", what, todo, needed=False)
    return looked_at("host", name, "ok", what)


def _locked_memory(case: Case) -> Finding:
    """Transfers from the host pin its memory; root may pin any, whatever the limit says."""
    text, name = case.machine.text(m.LIMITS), "locked memory"
    found = m.limit(text, "Max locked memory") if text is not None else None
    if found is None:
        return looked_at("host", name, "unknown", case.machine.why_not(m.LIMITS), needed=False)
    if found < 0:
        return looked_at("host", name, "ok", message("without limit"))
    root = (case.machine.text(m.USER) or "").startswith("uid=0")
    todo = message("ulimit -l unlimited, or docker run --ulimit memlock=-1")
    what = message("{size} at most", size=size_text(found))
    if root:
        what = message("{what}, which root need not keep with the capability IPC_LOCK", what=what)
        return looked_at("host", name, "ok", what)
    what = message("{what}: offloaded states cannot be pinned", what=what)
    return looked_at("host", name, "warning", what, todo, needed=False)


def _user(case: Case) -> Iterator[Finding]:
    text = case.machine.text(m.USER)
    if text is not None and "(" not in text:
        what = message("{user} has no name here: torch, CANN and Ray look for its home folder", user=text.strip())
        todo = message(
            "start the container with a user that /etc/passwd of the image names, or add it there (vllm-ascend#9490)"
        )
        yield looked_at("host", "user", "error", what, todo)


def _huge_pages(case: Case) -> Iterator[Finding]:
    text = case.machine.text(m.MEMORY)
    kept, total = m.huge_pages(text or ""), m.memory(text or "")
    if not kept or not total:
        return
    what = message(
        "{kept} of {total} are kept for them, and nothing here uses any", kept=size_text(kept), total=size_text(total)
    )
    todo = message("on the host: sysctl -w {setting}", setting="vm.nr_hugepages=0")
    yield judged("host", "huge pages", "warning" if kept > KEPT_SHARE * total else "ok", what, todo, needed=False)


def _controller(case: Case) -> Iterator[Finding]:
    """What the first node holds while the workers' replies come, beside what every node keeps for its devices."""
    name = "controller memory"
    try:
        found = controller_of(case)
    except BadSizes:
        return  # told with the other parallel sizes
    if found is None:
        what = message("batch or lengths are not said")
        if case.on(V1):
            what = message(
                "verl's v1 trainer keeps the batch in TransferQueue; what that, and what it takes out of it, come to is not"
                " counted"
            )
        yield looked_at("host", name, "unknown", what, needed=False)
        return
    largest = found.largest
    what = message(
        "{bytes} come to the first node for {call} ({replies}), beside a batch of {batch}: {needed} in Ray's store and in the"
        " controller",
        bytes=size_text(largest.bytes),
        call=largest.call,
        replies=largest.what,
        batch=size_text(found.batch),
        needed=size_text(found.needed),
    )
    has, of = host_memory(case)
    advice = message(
        "a smaller batch (--size batch=N), fewer nodes, or less tensor, pipeline and context parallelism: each device that"
        " shares a part of the batch answers with all of it"
    )
    if has is None:
        todo = message("look whether it has as much; {advice}", advice=advice)
        yield looked_at("host", name, "unknown", joined([what, of], "; "), todo)
        return
    kept = kept_on_host(case)
    if kept:
        what = message("{what}, with {size} of states", what=what, size=size_text(kept))
    what = message("{what}; {of} is {has}", what=what, of=of, has=size_text(has))
    batch = _largest_batch(case, found.needed, int(has * RAY_KILLS_ABOVE) - kept)
    if 0 < batch < (case.number(BATCH) or 0):
        setting = f"--size batch={batch}" if "batch" in case.run.sizes else f"{BATCH}={batch}"
        advice = message("the largest power of two that fits is {setting}; {advice}", setting=setting, advice=advice)
    if found.needed + kept > has * RAY_KILLS_ABOVE:
        share = f"{float(RAY_KILLS_ABOVE):.0%}"
        what = message("{what}, of which Ray lets {share} be used", what=what, share=share)
        yield looked_at("host", name, "error", what, advice)
    elif found.needed + kept > has * WELL_WITHIN:
        what = message("{what}: more than {share}", what=what, share=f"{float(WELL_WITHIN):.0%}")
        yield looked_at("host", name, "warning", what, advice)
    else:
        yield looked_at("host", name, "ok", what)


def kept_on_host(case: Case) -> int:
    """States of a node's devices that lie on the host while the replies come; 0 where the model or its sizes are not known."""
    if not isinstance(case.model, Model):
        return 0
    try:
        return training_of(case, case.model).elsewhere * case.devices_per_node
    except BadSizes:
        return 0


def _largest_batch(case: Case, needed: int, budget: int) -> int:
    """The largest power of two for the batch that stays within a budget; what is needed is a multiple of the batch."""
    each = needed // (case.number(BATCH) or 1)
    fits = budget // max(1, each)
    return 1 << (fits.bit_length() - 1) if fits > 0 else 0


def host_memory(case: Case) -> tuple[int | None, str]:
    """What the machine or its container has, and which of both that is."""
    text = case.machine.text(m.MEMORY)
    total = m.memory(text) if text is not None else None
    total = total - (m.huge_pages(text or "") or 0) if total is not None else None
    most = m.memory_limit(case.machine.text(m.MEMORY_LIMIT) or "")
    if total is None and most is None:
        return None, case.machine.why_not(m.MEMORY)
    if most is not None and (total is None or most < total):
        return most, message("the container's limit")
    return total, message("the memory of the machine")
