"""The NPUs: whether npu-smi sees as many as the recipe wants, healthy and free, and the container has their files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchctl.findings import Finding, Level, judged, looked_at
from patchctl.language import joined, message
from patchctl.terminal.progress import size_text
from patchctl.terminal.text import abridged, device_count
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case

# An idle chip shows 2.9 to 3.5 GB of 64 in use (vllm-project/vllm-ascend #5588, #2534): a tenth is someone's process.
IDLE_SHARE = 0.1
VISIBLE_CARDS = "ASCEND_VISIBLE_DEVICES"
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
_MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
# What npu-smi says instead of its table (vllm-ascend#2698, #9490; verl#332; Ascend/cann-container-image#46).
_RETURNED = re.compile(r"ret is (-\d+)")
_CODES = {
    "-8005": (
        message("it finds no device: device files are missing here, or this user may not open them"),
        message(
            "start the container with --device for each card and the managers, or as a user of the group HwHiAiUser"
        ),
    ),
    "-8020": (
        message("the devices are held by another process or container"),
        message("end what holds them: workers of a killed run, or another container that was given the same cards"),
    ),
}


def check_devices(case: Case) -> Iterator[Finding]:
    """npu-smi, number, health, use and device files."""
    found = case.smi
    if found is None:
        level: Level = "error" if case.machine.known_to_lack(m.NPU_SMI) else "unknown"
        todo = message(
            "install the driver (Ascend HDK) on the host; mount /usr/local/bin/npu-smi, /usr/local/dcmi and"
            " /usr/local/Ascend/driver into the container; or look at another machine: --machine DIR"
        )
        yield looked_at("devices", "npu-smi", level, case.machine.why_not(m.NPU_SMI), todo)
    elif not found.devices and (failed := _RETURNED.search(case.machine.text(m.NPU_SMI) or "")):
        other = message("it ends with {code}", code=failed[1]), message("look the code up in the driver's documents")
        what, todo = _CODES.get(failed[1], other)
        yield looked_at(
            "devices", "npu-smi", "error", message("{what} (ret is {code})", what=what, code=failed[1]), todo
        )
    elif not found.devices:
        todo = message("run `npu-smi info` by hand; where it shows devices, please report its output")
        what = message("its output has no table of devices that is understood")
        yield looked_at("devices", "npu-smi", "unknown", what, todo)
    else:
        version = found.version or message("not said")
        what = message("version {version}, {devices}", version=version, devices=device_count(len(found.devices)))
        yield looked_at("devices", "npu-smi", "ok", what)
        yield _count(len(found.devices), case)
        yield from _first_card(case, found)
        yield _health(found)
        yield from _use(found)
    yield from _visible(case)
    yield _files(case)


def _first_card(case: Case, found: m.Smi) -> Iterator[Finding]:
    """verl asks `npu-smi info -t board -i 1` before the first transfer of weights, whatever cards there are, and ends without an answer
    unless this variable names another (verl v0.9.0, utils/device.py, get_npu_versions)."""
    cards = sorted({device.card for device in found.devices})
    first = case.in_effect.get(VISIBLE_CARDS, "").split(",")[0].strip()
    named = first.isdecimal() and not {int(first), int(first) // 2}.isdisjoint(cards)
    if 1 in cards or not case.is_of("verl", ">=0.9") or named:
        return
    what = message(
        "there is no card 1, which verl asks for its versions before the first transfer of weights; here are {cards}",
        cards=joined(map(str, cards)),
    )
    value = ",".join(map(str, cards))
    todo = message("export {variable}={value} before `ray start`", variable=VISIBLE_CARDS, value=value)
    yield looked_at("devices", "card 1", "error", what, todo)


def _count(found: int, case: Case) -> Finding:
    wanted = max(case.devices_per_node, case.run.engine_devices_per_node)
    what = message(
        "{found} devices; the recipe has {wanted} a node, {total} in all (a card of the A3 is two devices)",
        found=found,
        wanted=wanted,
        total=case.run.all_devices,
    )
    todo = message(
        "another machine, or --size devices_per_node={found} with --nodes to match; parallel sizes have to divide",
        found=found,
    )
    return judged("devices", "number of devices", "error" if found < wanted else "ok", what, todo)


def _health(found: m.Smi) -> Finding:
    ill = [d for d in found.devices if d.health != "OK"]
    if not ill:
        return looked_at(
            "devices", "health", "ok", message("OK on {devices}", devices=device_count(len(found.devices)))
        )
    first = ill[0]
    todo = message(
        "`npu-smi info -t health -i {card} -c {chip}` tells the error code; take the machine out until it is OK",
        card=first.card,
        chip=first.chip,
    )
    what = joined(f"{_name(d)} {d.health}" for d in ill)
    return looked_at("devices", "health", "error", what, todo)


def _use(found: m.Smi) -> Iterator[Finding]:
    busy = [d for d in found.devices if d.used > IDLE_SHARE * d.total]
    if busy:
        each = [(_name(d), size_text(d.used), size_text(d.total)) for d in busy]
        what = abridged([message("{device} {used} of {total}", device=d, used=u, total=t) for d, u, t in each], 4)
        todo = message(
            "end what runs there (the processes are at the end of `npu-smi info`); a killed run can leave workers behind"
        )
        yield looked_at("devices", "memory in use", "error", what, todo)
    elif found.processes:
        pids = joined(map(str, found.processes[:8]))
        todo = message("end them, or be sure that they need no memory")
        yield looked_at("devices", "memory in use", "warning", message("processes on devices: {pids}", pids=pids), todo)
    else:
        most = max(d.used for d in found.devices)
        what = message("at most {size} of a device, as when idle", size=size_text(most))
        yield looked_at("devices", "memory in use", "ok", what)


def _files(case: Case) -> Finding:
    text = case.machine.text(m.DEVICES)
    if text is None:
        todo = message("record again with `patchctl preflight --record DIR`")
        return looked_at("devices", "device files", "unknown", case.machine.why_not(m.DEVICES), todo)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    paths = [line.partition(" ")[0] for line in lines]
    numbered = [p for p in paths if re.fullmatch(r".*/davinci\d+", p)]
    missing = [p for p in _MANAGERS if p not in paths]
    closed = [line.partition(" ")[0] for line in lines if line.endswith(m.CLOSED)]
    wanted = max(case.devices_per_node, case.run.engine_devices_per_node)
    what = message("{count} of /dev/davinci*", count=len(numbered))
    if len(numbered) < wanted or missing:
        lacks = [message("{wanted} wanted", wanted=wanted)] if len(numbered) < wanted else []
        lacks += [message("without {names}", names=joined(missing))] if missing else []
        todo = message(
            "give docker run --device /dev/davinci0 ... and --device /dev/davinci_manager, devmm_svm and hisi_hdc"
        )
        return looked_at("devices", "device files", "error", joined([what, *lacks], "; "), todo)
    if closed:
        todo = message(
            "run as root, or as a user of the group that owns them (HwHiAiUser, 1000 as a rule), with the capability"
            " DAC_OVERRIDE in a container that drops all (vllm-ascend#2698, #9490)"
        )
        shut = message("{files} may not be opened by this user", files=abridged(closed, 1))
        return looked_at("devices", "device files", "error", shut, todo)
    return looked_at("devices", "device files", "ok", joined([what, *_MANAGERS]))


def _visible(case: Case) -> Iterator[Finding]:
    """CANN shows the devices that the variable names and no others; Ray counts the same (vllm-ascend#14628)."""
    value = (case.environment or {}).get(VISIBLE)
    if value is None:
        return
    numbers = [n.strip() for n in value.split(",")]
    wanted, count = case.devices_per_node, len(numbers)
    todo = message("unset {variable} before `ray start`: Ray gives each worker its own", variable=VISIBLE)
    if not all(n.isdecimal() for n in numbers) or len(set(numbers)) < count:
        what = message("{value}: numbers of devices with commas, each once, are wanted", value=value)
        yield looked_at("devices", VISIBLE, "error", what, todo)
    elif count < wanted:
        what = message(
            "{value} shows {devices}; {wanted} wanted", value=value, devices=device_count(count), wanted=wanted
        )
        yield looked_at("devices", VISIBLE, "error", what, todo)
    else:
        yield looked_at(
            "devices", VISIBLE, "ok", message("{value}: {devices}", value=value, devices=device_count(count))
        )


def _name(device: m.Device) -> str:
    return f"NPU {device.card} chip {device.chip}"
