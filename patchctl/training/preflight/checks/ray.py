"""What Ray stumbles over: where its objects lie, proxies, and a variable that keeps it from handing out devices; and what the workers send
to the controller in a step, and what it keeps.

verl v0.6.0's single controller: a worker group's call is answered by every device, although only one of those that share a part of the
batch is listened to: `ray.get` comes before the choice (single_controller/ray/base.py, func_generator; base/decorator.py,
collect_nd_compute). A part is 1/dp of the batch, so that all replies together are the batch times the devices that share a part.
tests/behaviour/verl/test_controller_memory.py counts the bytes over a real Ray.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from patchctl.findings import Finding, judged, looked_at
from patchctl.language import joined, message
from patchctl.terminal.progress import size_text
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.sizes import ACTOR, MEGATRON, ROLLOUT, BadSizes, generated_prompts, has_reference

INT64, FLOAT32 = 8, 4
V1 = "trainer.use_v1"  # of verl v0.9.0, whose workers answer nothing: the batch is in TransferQueue
COPIES = 2  # the object in Ray's store, and the tensors that the controller makes of it


@dataclass(frozen=True)
class Reply:
    """What all devices together answer to one call: bytes, and what they are."""

    call: str
    bytes: int
    what: str


@dataclass(frozen=True)
class Lengths:
    """Samples that are trained in a step and that are generated at once; tokens of a prompt and of a response."""

    trained: int
    generated: int
    prompt: int
    response: int


@dataclass(frozen=True)
class Sharing:
    """How many devices have the same part of the batch: in training, of these on the last pipeline stage, in the rollout."""

    training: int
    last_stage: int
    rollout: int


@dataclass(frozen=True)
class Switches:
    """Whether old log-probabilities are left out, there is a reference model, and the rollout gives its log-probabilities."""

    skips: bool = False
    reference: bool = False
    log_probs: bool = False


@dataclass(frozen=True)
class Controller:
    """The replies by call, and the batch that grows on the controller meanwhile."""

    replies: tuple[Reply, ...]
    batch: int

    @property
    def largest(self) -> Reply:
        return max(self.replies, key=lambda r: r.bytes)

    @property
    def needed(self) -> int:
        """While the largest replies come: these, and the batch with what of it is on its way to the workers."""
        return COPIES * (self.largest.bytes + self.batch)


def controller_of(case: Case) -> Controller | None:
    """None where the recipe does not say how much there is, or for a trainer without such answers. Raises BadSizes."""
    lengths = _lengths(case)
    if lengths is None or case.on(V1):
        return None
    switches = Switches(
        case.on(f"{ACTOR}.skip_old_log_prob"),
        has_reference(case),
        case.on(f"{ROLLOUT}.calculate_log_probs"),
    )
    return controller(lengths, sharing_of(case), switches)


def controller(lengths: Lengths, sharing: Sharing, switches: Switches) -> Controller:
    """The replies of a step."""
    return Controller(tuple(_replies(lengths, sharing, switches)), _batch(lengths, switches))


def _replies(of: Lengths, sharing: Sharing, switches: Switches) -> Iterator[Reply]:
    """Five tensors of int64 from the rollout (vllm_rollout_spmd.py); fields of fp32 as long as the response elsewhere."""
    field = of.trained * of.response * FLOAT32
    generation = of.generated * _generated(of, switches)
    rollout = message("prompts, responses, ids, mask and positions")
    yield Reply("generate_sequences", generation * sharing.rollout, rollout)
    if not switches.skips:
        yield Reply("compute_log_prob", 2 * field * sharing.training, message("old log-probabilities and entropies"))
    if switches.reference:
        yield Reply("compute_ref_log_prob", field * sharing.training, message("the reference's log-probabilities"))
    if switches.skips:
        yield Reply("update_actor", field * sharing.last_stage, message("the update's entropies (skip_old_log_prob)"))


def _generated(of: Lengths, switches: Switches) -> int:
    """Bytes of a sample as the rollout gives it: prompt, response, and three tensors of both."""
    return 4 * INT64 * (of.prompt + of.response) + FLOAT32 * of.response * switches.log_probs


def _batch(of: Lengths, switches: Switches) -> int:
    """What the trainer's batch holds when it is updated: generation, the response's mask, and of fp32 scores, advantages (the
    returns are the same tensor for GRPO and DAPO), old and the reference's log-probabilities."""
    fields = 2 + (not switches.skips) + switches.reference
    return of.trained * (_generated(of, switches) + INT64 * of.response + fields * FLOAT32 * of.response)


def sharing_of(case: Case) -> Sharing:
    """Raises BadSizes."""
    rollout = max(1, case.number(f"{ROLLOUT}.tensor_model_parallel_size") or 1)
    if case.text(f"{ACTOR}.strategy") != "megatron":
        training = max(1, case.number(f"{ACTOR}.ulysses_sequence_parallel_size") or 1)
        return Sharing(training, training, rollout)
    tensor, pipeline, context = (
        case.number(f"{MEGATRON}.{name}_parallel_size") or 1 for name in ("tensor_model", "pipeline_model", "context")
    )
    if min(tensor, pipeline, context) < 1:
        raise BadSizes(message("a parallel size below 1"))
    return Sharing(tensor * pipeline * context, tensor * context, rollout)


def _lengths(case: Case) -> Lengths | None:
    prompts, samples = case.number("data.train_batch_size"), case.number(f"{ROLLOUT}.n")
    prompt, response = case.number("data.max_prompt_length"), case.number("data.max_response_length")
    if not prompts or not samples or prompt is None or not response:
        return None
    generated = generated_prompts(case) or prompts
    return Lengths(prompts * samples, generated * samples, prompt, response)


# Ray 2.48, _private/ray_constants.py and utils.py: 30 % of what is available, 200 GB and 95 % of /dev/shm at most.
_SHARE, _MOST, _OF_SHARED = Fraction(30, 100), 200 * 10**9, Fraction(95, 100)
# raylet, file_system_monitor: no objects are made where the disk of its folder is fuller (InternLM/lmdeploy#3457).
_FULL = Fraction(95, 100)
_FOLDER = "/tmp/ray"
NOSET = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
GRPC_PROXY = "RAY_grpc_enable_http_proxy"


def check_ray(case: Case) -> Iterator[Finding]:
    """The object store, the disk behind it, proxies, and who hands out devices."""
    yield from _store(case)
    yield from _disk(case)
    yield from _proxies(case)
    if (case.environment or {}).get(NOSET):
        what = message(
            "{variable} is set: Ray shows every worker all devices, and each has to choose its own by LOCAL_RANK",
            variable=NOSET,
        )
        todo = message(
            "unset {variable} before `ray start`: workers were on the wrong device with it (verl-omni#227)",
            variable=NOSET,
        )
        yield looked_at("environment", NOSET, "warning", what, todo, needed=False)


def object_store(case: Case) -> int | None:
    """How large Ray makes its object store on this machine unless it is told."""
    memory, disks = case.machine.text(m.MEMORY) or "", case.machine.text(m.DISKS)
    free = m.memory(memory, "MemAvailable") or m.memory(memory)
    if free is None or disks is None:
        return None
    shared = m.mount_of("/dev/shm", m.mounts(disks))
    here = shared.total if shared is not None and shared.point == "/dev/shm" else 0
    return min(int(free * _SHARE), _MOST, int(here * _OF_SHARED))


def _store(case: Case) -> Iterator[Finding]:
    try:
        told, size = controller_of(case), object_store(case)
    except BadSizes:
        return
    if told is None or size is None:
        return
    name, largest = "Ray's object store", told.largest
    what = message(
        "{size} unless it is told; {bytes} come at once for {call} on the first node",
        size=size_text(size),
        bytes=size_text(largest.bytes),
        call=largest.call,
    )
    needed = largest.bytes + told.batch
    todo = message(
        "ray_cluster.sh head ... -- --object-store-memory {bytes}, with a larger /dev/shm; else the rest goes by way of"
        " {folder} on disk",
        bytes=needed * 11 // 10,
        folder=_FOLDER,
    )
    yield judged("host", name, "warning" if needed > size else "ok", what, todo, needed=False)


def _disk(case: Case) -> Iterator[Finding]:
    disks = case.machine.text(m.DISKS)
    mount = m.mount_of(_FOLDER, m.mounts(disks)) if disks is not None else None
    if mount is None or not mount.total:
        return  # df is asked for elsewhere
    name, used = "disk of Ray", 1 - Fraction(mount.free, mount.total)
    what = message(
        "{free} of {total} are free on {point} for {folder}",
        free=size_text(mount.free),
        total=size_text(mount.total),
        point=mount.point,
        folder=_FOLDER,
    )
    if used > _FULL:
        todo = message("make room, or ray_cluster.sh head --temp-dir D on another disk, which all nodes then use")
        share = f"{float(_FULL):.0%}"
        what = message("{what}: above {share} Ray makes no objects that spill", what=what, share=share)
        yield looked_at("host", name, "error", what, todo)
    else:
        yield looked_at("host", name, "ok", what)


def _proxies(case: Case) -> Iterator[Finding]:
    """Ray's own channels leave HTTP proxies aside unless told (ray#23526); its dashboard, its client and what else speaks HTTP
    to a node do not (ray#14350, #37757)."""
    own = {name.lower(): (name, value) for name, value in (case.environment or {}).items()}
    named = [own[name][0] for name in PROXIES if name in own and own[name][1]]
    if not named:
        return
    open_to_ray = (case.environment or {}).get(GRPC_PROXY, "0") not in ("", "0", "false", "False")
    missing = _not_exempt(case, own.get("no_proxy", ("", ""))[1])
    if not missing:
        what = message("{names}; no_proxy names this machine and the first node", names=joined(named))
        yield looked_at("network", "proxy", "ok", what)
        return
    what = message("{names}, and no_proxy leaves out {missing}", names=joined(named), missing=joined(missing))
    own_names = ("localhost", "127.0.0.1")
    todo = message(
        "export no_proxy={addresses} and the other nodes' addresses before `ray start`, or unset {names}",
        addresses=",".join([*own_names, *(a for a in missing if a not in own_names)]),
        names=" ".join(named),
    )
    if open_to_ray:
        what = message("{what}; {variable} sends Ray's own traffic there", what=what, variable=GRPC_PROXY)
        yield looked_at("network", "proxy", "error", what, todo)
    else:
        yield looked_at("network", "proxy", "warning", what, todo, needed=False)


def _not_exempt(case: Case, exempt: str) -> list[str]:
    """The addresses that are spoken to and that no_proxy does not name."""
    data = case.machine.data(m.ADDRESSES)
    own = [a for i in m.interfaces(data) if i.name != "lo" for a in i.addresses if ":" not in a][:1]
    master = case.in_effect.get("MASTER_ADDR")
    names = dict.fromkeys(["127.0.0.1", *own, *([master] if master and case.run.machines > 1 else [])])
    rules = [rule.strip() for rule in exempt.split(",") if rule.strip()]
    return [name for name in names if not any(_covers(rule, name) for rule in rules)]


def _covers(rule: str, name: str) -> bool:
    """`*`, a name, the end of a name, or a network as 192.0.2.0/24, which requests and Ray's aiohttp understand."""
    if rule in ("*", name) or (name == "127.0.0.1" and rule == "localhost"):
        return True
    try:
        return "/" in rule and ipaddress.ip_address(name) in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        return name.endswith(rule) and rule.startswith(".")
