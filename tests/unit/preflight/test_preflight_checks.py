"""Each check on a node that lacks one thing, and on a good one; real recipes, recordings in the forms of machines.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import (
    DAY,
    ENVIRONMENT,
    JEMALLOC,
    MCORE,
    MODEL,
    NOW,
    TRAIN,
    df,
    hccn,
    ip_addr,
    npu_smi,
    paths,
    pip_list,
    tcp,
    texts,
    workspace,
    write_machine,
)
from pins import distribution, oldest
from preflight_cases import Look, case_of

from patchctl.findings import Finding
from patchctl.training.models import read_models
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.checks import all_findings
from patchctl.training.preflight.checks.devices import check_devices
from patchctl.training.preflight.checks.host import check_host
from patchctl.training.preflight.checks.ray import controller_of
from patchctl.training.preflight.checks.software import old_caches
from patchctl.training.preflight.machine import PROBES, Machine, recorded
from patchctl.training.recipes.conditions import sides
from patchctl.training.recipes.read import read_recipes
from patchctl.training.recipes.resolve import Given, resolve

TIB = 1 << 30  # in KiB, as /proc/meminfo has it


def one(findings: dict[str, list[Finding]], name: str) -> Finding:
    (found,) = findings[name]
    return found


def environment(**more: str) -> str:
    return json.dumps({**ENVIRONMENT, **more})


def meminfo(tib: float) -> str:
    return f"MemTotal: {int(tib * TIB)} kB\n"


def test_a_good_node_has_nothing_in_the_way(look: Look) -> None:
    findings = [f for rows in look().values() for f in rows]
    assert [f for f in findings if f.blocks] == []
    assert {f.name for f in findings if f.level != "ok"} == {"sequences at once"}


def test_every_finding_that_is_not_fine_says_what_to_do(look: Look) -> None:
    nothing = dict.fromkeys(name.partition(".")[0].replace("-", "_") for name in texts() if name != "machine.json")
    found = [f for rows in look(**nothing).values() for f in rows]
    assert all(f.todo for f in found if f.blocks)
    blocking = {f.name for f in found if f.level == "unknown" and f.blocks}
    assert {
        "npu-smi",
        "device files",
        "driver",
        "cann",
        "torch-npu",
        "/dev/shm",
        "open files",
        "controller memory",
        "ports",
        "interface",
        "variables",
        "workspace",
    } <= blocking
    fine = {f.name for f in found if f.level == "ok"}
    assert fine <= {"model", "length", "engine groups", "states on the host", "engine asleep"}  # which need no machine


def test_what_was_looked_for_in_vain_is_wrong_and_not_unknown(look: Look) -> None:
    about = json.dumps({"time": NOW, "absent": {"npu-smi.txt": "npu-smi is not on PATH"}})
    found = one(look(npu_smi=None, machine=about), "npu-smi")
    assert (found.level, found.message) == ("error", "npu-smi is not on PATH")
    assert one(look(npu_smi=None), "npu-smi").level == "unknown"


def test_devices(look: Look) -> None:
    few = one(look(npu_smi=npu_smi(cards=4)), "number of devices")
    assert few.blocks and "8 devices; the recipe has 16 a node" in few.message and "devices_per_node=8" in str(few.todo)
    for code, words in (("-8005", "device files"), ("-8020", "another process"), ("-9", "look the code up")):
        found = one(
            look(npu_smi=f"DrvMngGetConsoleLogLevel failed.\ndcmi module initialize failed. ret is {code}\n"), "npu-smi"
        )
        assert found.level == "error" and words in f"{found.message} {found.todo}"
    assert one(look(npu_smi="nothing known\n"), "npu-smi").level == "unknown"
    ill = one(look(npu_smi=npu_smi(health={(3, 1): "Alarm"})), "health")
    assert ill.blocks and ill.message == "NPU 3 chip 1 Alarm" and "-i 3 -c 1" in str(ill.todo)
    busy = one(look(npu_smi=npu_smi(used={(0, 0): 50000})), "memory in use")
    assert busy.blocks and "NPU 0 chip 0 48.8 GiB of 64.0 GiB" in busy.message
    used = one(look(npu_smi=npu_smi(processes={(0, 0): 4711})), "memory in use")
    assert (used.level, used.blocks) == ("warning", False) and "4711" in used.message
    files = one(look(davinci="/dev/davinci0\n/dev/davinci_manager\n"), "device files")
    assert files.blocks and "1 of /dev/davinci*; 16 wanted; without /dev/devmm_svm, /dev/hisi_hdc" in files.message


def test_one_device_of_a_smaller_machine(look: Look) -> None:
    found = look("qwen2.5-1.5b/grpo", npu_smi=npu_smi(cards=8, chips=1))
    assert one(found, "number of devices").level == "ok"


@pytest.mark.parametrize(
    ("name", "changed", "what"),
    [
        ("cann", {"cann": "version=8.3.RC1\n"}, "8.3.RC1; 8.5.0 is wanted"),
        ("torch-npu", {"pip_list": pip_list(torch_npu="2.9.1")}, "2.9.1; 2.9.0 is wanted"),
        ("ray", {"pip_list": pip_list(ray="2.49.0")}, "2.49.0; >=2.47.1,<=2.48.0 is wanted"),
        ("tensordict", {"pip_list": pip_list(tensordict=None)}, "0.11.0 is wanted; not among the packages"),
        ("python", {"python": "Python 3.10.0\n"}, "3.10.0; 3.11.* is wanted"),
        ("cann", {"cann": "nothing of the kind\n"}, "8.5.0 is wanted; its file names no version"),
        ("torch", {"pip_list": "no json"}, "the list of packages cannot be read"),
    ],
)
def test_versions(look: Look, name: str, changed: dict[str, str], what: str) -> None:
    found = one(look(**changed), name)
    assert found.blocks and found.level == "error" and what in found.message


def test_another_driver_is_told_and_stops_nothing(look: Look) -> None:
    """002: 25.3, and other versions that go with this CANN."""
    found = one(look(driver="Version=25.2.1\n"), "driver")
    assert (found.level, found.blocks) == ("warning", False) and found.message.startswith(
        "25.2.1; 25.3.* is the release's"
    )
    assert "release notes of CANN 8.5.0" in str(found.todo)


@pytest.mark.parametrize(
    ("name", "changed", "what", "cure"),
    [
        (
            "triton",
            {"triton": "3.5.0"},
            "3.5.0 is installed, but left out of the lock",
            "pip uninstall -y triton; pip install --force-reinstall",
        ),
        ("numpy", {"numpy": "2.4.0"}, "verl/setup.py wants numpy<2.0.0", "pip install numpy==1.26.0"),
        ("mathruler", {"mathruler": None}, "mathruler is missing", "pip install mathruler==0.1.0"),
        (
            "triton-ascend",
            {"triton_ascend": None},
            "for vllm-ascend/requirements.txt",
            "pip install triton-ascend==3.2.0",
        ),
        (
            "codetiming",
            {"codetiming": None},
            "codetiming is missing; the lock has 1.4.0, for verl/setup.py",
            "codetiming==1.4.0",
        ),
        (
            "opencv-python-headless",
            {"opencv_python_headless": "4.13.0.90"},
            "wants opencv-python-headless<=4.11.0.86",
            "4.11.0.86",
        ),
    ],
)
def test_packages_that_stop_a_run(look: Look, name: str, changed: dict[str, str | None], what: str, cure: str) -> None:
    found = one(look("qwen3-32b/grpo", pip_list=pip_list(**changed)), name)
    assert found.blocks and found.level == "error" and what in found.message
    assert cure in str(found.todo) and f"--accept {name}" in str(found.todo)


def test_packages_without_which_it_runs(look: Look) -> None:
    """No recipe with verl's own reward imports mathruler; the rest is told, and stops nothing."""
    changed = pip_list(mathruler=None, zarr=None, numpy="1.26.4", pillow="9.0.0", nvidia_nccl_cu12="2.27.5")
    found = look("qwen3-32b/dapo", pip_list=changed)
    others = one(found, "other packages")
    assert (others.level, others.blocks, "mathruler" in found) == ("warning", False, False)
    for part in (
        "2 missing (mathruler, zarr)",
        "1 of excluded versions (numpy 1.26.4)",
        "pillow 9.0.0",
        "1 installed but left out of the lock (nvidia-nccl-cu12 2.27.5)",
    ):
        assert part in others.message
    told = one(look("qwen3-32b/dapo", pip_list=pip_list(pillow="9.0.0")), "other packages")
    assert told.level == "ok" and "1 of other versions than the lock (pillow 9.0.0)" in told.message


def test_an_environment_with_next_to_nothing_is_told_in_a_few_lines(look: Look) -> None:
    bare = json.dumps([{"name": n, "version": v} for n, v in (("torch", "2.9.0"), ("ray", "2.48.0"))])
    found = look(pip_list=bare)
    (rest,) = found["packages"]
    assert rest.blocks and "missing" in rest.message and "--accept packages" in str(rest.todo)
    assert len([f for fs in found.values() for f in fs if f.rule == "software" and "is missing" in f.message]) == 8


def test_commands_that_are_advised_name_the_release(look: Look) -> None:
    """A profile alone is taken on another release, whose lock and variables these are not."""
    other = json.dumps(ENVIRONMENT | {"TASK_QUEUE_ENABLE": "7"})
    found = look(pip_list="[]", environment=other)
    assert f"patchctl requirements --profile qwen3-235b --release {oldest()} " in str(one(found, "packages").todo)
    assert f'"$(patchctl recipe env qwen3-235b/grpo@{oldest()})"' in str(found["TASK_QUEUE_ENABLE"][-1].todo)


def test_the_driver_by_npu_smi_where_its_file_is_not_mounted(look: Look) -> None:
    assert one(look(driver=None), "driver").message.startswith("25.3.rc1")
    assert one(look(driver=None, npu_smi=npu_smi(version="25.2.1")), "driver").level == "warning"
    assert one(look(driver=None, npu_smi=None), "driver").level == "unknown"


def caches(*days: float) -> str:
    return json.dumps(
        [{"path": f"/root/atc_data{n}", "bytes": 5, "modified": NOW - d * DAY} for n, d in enumerate(days)]
    )


def test_caches_that_are_older_than_cann(look: Look) -> None:
    """CANN is ten days old."""
    old, new = look(caches=caches(12, 1))["compile caches"]
    assert (old.level, old.blocks, new.level) == ("warning", False, "ok")
    assert "2.0 days before this CANN" in old.message and "--clear-caches" in str(old.todo)
    (unknown,) = look(caches=caches(1), paths=json.dumps({}))["compile caches"]
    assert unknown.level == "warning" and "when CANN was installed is not known" in unknown.message
    assert "--clear-caches" not in str(unknown.todo) and "rm -r /root/atc_data0" in str(unknown.todo)


def test_only_old_caches_would_be_cleared() -> None:
    machine = Machine({"caches.json": caches(12, 1), "paths.json": json.dumps(paths())}, "here", NOW)
    assert [c.path for c in old_caches(case_of("qwen3-235b/grpo", machine))] == ["/root/atc_data0"]
    unknown = Machine({"caches.json": caches(12, 1), "paths.json": "{}"}, "here", NOW)
    assert old_caches(case_of("qwen3-235b/grpo", unknown)) == []


def test_one_new_file_makes_no_new_cache(look: Look) -> None:
    row = {"path": "/root/atc_data", "bytes": 5, "modified": NOW - DAY, "oldest": NOW - 12 * DAY}
    found = one(look(caches=json.dumps([row])), "compile caches")
    assert found.level == "warning" and "2.0 days before this CANN" in found.message
    machine = Machine({"caches.json": json.dumps([row]), "paths.json": json.dumps(paths())}, "here", NOW)
    assert [c.path for c in old_caches(case_of("qwen3-235b/grpo", machine))] == ["/root/atc_data"]


def test_shared_memory_and_open_files(look: Look) -> None:
    assert one(look(df=df(_dev_shm=(500, 499))), "/dev/shm").level == "warning"
    small = df().replace(f"{720 << 20} {1 << 20} {719 << 20}", "65536 0 65536")
    assert one(look(df=small), "/dev/shm").blocks
    none = "\n".join(line for line in df().splitlines() if "/dev/shm" not in line)
    assert one(look(df=none), "/dev/shm").message == "no file system is mounted there"
    few = one(look(limits="Max open files 1024 1048576 files\n"), "open files")
    assert few.blocks and "ulimit -n 32768" in str(few.todo)
    assert one(look(limits="Max open files unlimited unlimited files\n"), "open files").level == "ok"


LONG = "qwen3-235b/dapo-longseq"


def test_controller_memory_is_what_the_workers_answer(look: Look) -> None:
    """GRPO on 235B: the reference's log-probabilities of 512 x 16 answers, from the 64 devices that have the same part."""
    enough = one(look(), "controller memory")
    assert enough.level == "ok"
    assert "64.0 GiB come to the first node for compute_ref_log_prob" in enough.message
    assert "155.0 GiB in Ray's store and in the controller, with 461.4 GiB of states" in enough.message
    tight = one(look(meminfo=meminfo(0.75)), "controller memory")
    assert tight.level == "warning" and "more than 75%" in tight.message
    little = one(look(meminfo=meminfo(0.6)), "controller memory")
    assert little.blocks and "of which Ray lets 95% be used" in little.message
    assert "fits is --size batch=256; " in str(little.todo)


def test_what_is_left_out_is_not_counted(look: Look) -> None:
    """With skip_old_log_prob and without a reference there are generations, and entropies from the last pipeline stage."""
    with_skip = one(look(LONG), "controller memory").message
    assert "33.0 GiB come to the first node for generate_sequences" in with_skip
    without = Given(overrides={"actor_rollout_ref.actor.skip_old_log_prob": "False"}, sizes={"batch": "512"})
    told = controller_of(case_of(LONG, given=without))
    assert told is not None and told.largest.call == "compute_log_prob" and told.largest.bytes == 512 << 30


def test_nothing_is_counted_of_a_trainer_that_has_no_such_answers(look: Look) -> None:
    """verl v0.9.0's v1 trainer waits for calls that answer nothing: the batch is in TransferQueue."""
    found = look(given=Given(overrides={"trainer.use_v1": "True"}), meminfo=meminfo(0.6))
    memory = one(found, "controller memory")
    assert (memory.level, memory.blocks) == ("unknown", False) and "TransferQueue" in memory.message
    assert "Ray's object store" not in found


def test_preflight_and_rules_count_the_same() -> None:
    """The rules are what can be said without a machine."""
    asked = {"actor_rollout_ref.actor.skip_old_log_prob": "False"}
    for title, name in (("qwen3-235b/grpo", "controller-memory"), ("qwen3-32b/dapo-fsdp2", "controller-memory-fsdp")):
        case = case_of(title, given=Given(overrides=asked))
        rule, told = case.all_rules.rules[name], controller_of(case)
        assert told is not None
        (reply,) = [r.bytes for r in told.replies if r.call == "compute_log_prob"]
        assert sides(rule.must.holds[0], case.facts.number)[0] == reply


def test_states_on_the_host_count_what_the_container_may_have(look: Look) -> None:
    enough = one(look(), "states on the host")
    assert enough.level == "ok" and "the memory of the machine is 2.0 TiB" in enough.message
    small = one(look(memory_limit=str(100 << 30)), "states on the host")
    assert small.blocks and "the container's limit is 100.0 GiB" in small.message
    assert one(look(meminfo=None, memory_limit=None), "states on the host").level == "unknown"


def test_weights_of_a_sleeping_engine_are_on_the_host_at_level_1(look: Look) -> None:
    """A node of 16 devices, each with 7.1 GiB of Qwen3-235B at a tensor parallel size of 4 and experts over 128 devices."""
    found = one(look(on_newest=True), "engine asleep")
    assert found.level == "ok" and "113.6 GiB a node" in found.message
    little = str(100 << 30)
    assert one(look(on_newest=True, memory_limit=little), "engine asleep").blocks
    level_2 = Given(overrides={"actor_rollout_ref.rollout.npu_sleep_level": "2"})
    assert one(look(on_newest=True, memory_limit=little, given=level_2), "engine asleep").level == "ok"
    never = Given(overrides={"actor_rollout_ref.rollout.free_cache_engine": "False"})
    assert "engine asleep" not in look(on_newest=True, given=never)
    assert "engine asleep" not in look()


def test_a_trainer_that_sends_changes_keeps_its_weights(look: Look) -> None:
    sends = Given(overrides={"actor_rollout_ref.rollout.checkpoint_engine.backend": "delta_in_place"})
    name = "weights to compare with"
    assert name not in look(on_newest=True)
    found = one(look(on_newest=True, given=sends), name)
    assert found.level == "ok" and "54.7 GiB a node" in found.message
    assert one(look(on_newest=True, given=sends, memory_limit=str(50 << 30)), name).blocks
    assert "npu_sleep_level=2" in one(look(on_newest=True), "engine asleep").message
    assert (
        "npu_sleep_level=2" not in one(look(on_newest=True, given=sends), "engine asleep").message
    )  # which refuses it


def test_engines_apart_have_machines_of_their_own(look: Look) -> None:
    """A node that trains on 16 devices, and another of which engines have 12, each with 7.6 GiB of Qwen3-8B."""
    title, sizes = "qwen3-8b/grpo-delta", Given(sizes={"rollout_devices": "12"})
    assert "28 in all" in one(look(title, on_newest=True, given=sizes), "number of devices").message
    more = Given(sizes={"rollout_devices": "32"})
    assert one(look(title, on_newest=True, given=more), "number of devices").blocks
    assert "91.5 GiB a node" in one(look(title, on_newest=True, given=sizes), "engine asleep").message
    assert "8 to 9 GB" not in one(look(title, on_newest=True), "update").message
    kept = one(look(title, on_newest=True), "states on the host")  # of the reference alone, in float32
    assert "30.5 GiB a node" in kept.message
    copied = one(look(title, on_newest=True), "copy of the actor")  # FSDP's shards are float32
    assert "61.0 GiB a node" in copied.message and "copy of the actor" not in look(on_newest=True)


def test_what_the_trainer_keeps_is_not_the_engines(look: Look) -> None:
    """The weights, gradients, states and reference of Qwen3-32B that no setting moves: 26.7 of 60.9 GiB."""
    actor, ref = "actor_rollout_ref.actor.megatron", "actor_rollout_ref.ref.megatron"
    stays = [f"{actor}.param_offload", f"{actor}.optimizer_offload", f"{ref}.param_offload"]
    name, title = "gpu_memory_utilization", "qwen3-32b/grpo"
    assert name not in look(title, on_newest=True)
    found = one(look(title, on_newest=True, given=Given(overrides=dict.fromkeys(stays, "False"))), name)
    assert found.blocks and "stay with the trainer" in found.message and "34.2 GiB are free" in found.message


def test_what_a_machine_keeps_is_added(look: Look) -> None:
    """The engine falls asleep before the trainer's states go back to the devices."""
    title, limit = "qwen3-32b/grpo", str(384 << 30)
    asleep = one(look(title, on_newest=True), "engine asleep")
    assert asleep.level == "ok" and "427.2 GiB together" in asleep.message
    assert one(look(title, on_newest=True, memory_limit=limit), "engine asleep").blocks


def test_fsdp_holds_weights_as_model_dtype_says(look: Look) -> None:
    half = Given(overrides={"actor_rollout_ref.actor.fsdp_config.model_dtype": "bfloat16"})
    for said, optimizer, checkpoint in ((Given(), "3.8 GiB", "91.5 GiB"), (half, "1.9 GiB", "45.8 GiB")):
        found = look("qwen3-8b/dapo", on_newest=True, given=said)
        assert f"optimizer {optimizer}" in one(found, "update").message
        assert one(found, "room for checkpoints").message.startswith(f"{checkpoint} each")


def test_adapters_have_no_states_of_the_frozen_weights(look: Look) -> None:
    adapters = Given(overrides={"actor_rollout_ref.model.lora_rank": "32"})
    found = one(look("qwen3-32b/dapo-fsdp2", on_newest=True, given=adapters), "update")
    assert "gradients 0 B, optimizer 0 B" in found.message


def test_answers_are_cut_at_the_models_length(look: Look) -> None:
    """On verl 0.9, whatever rope_scaling says; a max_model_len that is set is refused."""
    config = read_models(distribution()).models["Qwen3-235B-A22B"].config
    config = {**config, "max_position_embeddings": 40960, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    yarn = {"config": json.dumps(config)}
    longer = Given(sizes={"response": "49152"})
    found = one(look(on_newest=True, given=longer, **yarn), "length")
    assert found.blocks and found.message.endswith("cut there")
    given = Given(overrides={"actor_rollout_ref.rollout.max_model_len": "65536"})
    found = one(look(on_newest=True, given=given, **yarn), "length")
    assert found.blocks and found.message.endswith("verl refuses it")
    assert one(look(given=longer, **yarn), "length").level == "ok"


def test_a_containers_limit_counts(look: Look) -> None:
    found = one(look(LONG, meminfo=meminfo(4), memory_limit=str(200 << 30)), "controller memory")
    assert found.blocks and "the container's limit is 200.0 GiB" in found.message
    assert one(look(LONG, meminfo=meminfo(4), memory_limit="max\n"), "controller memory").level == "ok"


def test_ports(look: Look) -> None:
    ray = one(look(tcp=tcp(6766)), "ports of Ray")
    assert (ray.level, ray.blocks) == ("warning", False)  # it may be this run's
    hccl = one(look(tcp=tcp(60031)), "ports of HCCL")
    assert hccl.blocks and "60031 in use" in hccl.message
    assert one(look(tcp=tcp(60032)), "ports of HCCL").level == "ok"
    other = environment(HCCL_IF_BASE_PORT="50000")
    assert one(look(tcp=tcp(60000), environment=other), "ports of HCCL").level == "ok"
    assert one(look(tcp=tcp(50031), environment=other), "ports of HCCL").blocks
    ranges = environment(HCCL_HOST_SOCKET_PORT_RANGE="61000-61050,61100")
    assert one(look(tcp=tcp(61100), environment=ranges), "ports of HCCL").blocks
    assert one(look(environment=environment(HCCL_HOST_SOCKET_PORT_RANGE="auto")), "ports of HCCL").level == "ok"
    for wrong in ("x", "70000", "5-1", "0-3"):
        found = one(look(environment=environment(HCCL_HOST_SOCKET_PORT_RANGE=wrong)), "ports of HCCL")
        assert found.blocks and "cannot be read" in found.message


def test_engine_groups(look: Look) -> None:
    """16 nodes make two engines of 128 devices, and a port that 004 gives them is nobody's concern: vllm opens none."""
    two = Given(sizes={"nodes": "16"})
    told = one(look(given=two), "engine groups").message
    assert told.startswith("2 (256 devices, tensor parallel 4 x data parallel 32)")
    assert told.endswith("VLLM_DP_SIZE, which is left unset here, would be 64")
    assert one(look(given=two, tcp=tcp(29500, 29501)), "engine groups").message == told


def test_the_interface(look: Look) -> None:
    assert one(look(), "HCCL_SOCKET_IFNAME").message == "eth0: up, 192.0.2.7"
    other = one(look(environment=environment(HCCL_SOCKET_IFNAME="bond4")), "HCCL_SOCKET_IFNAME")
    assert other.blocks and "no such interface" in other.message and "lo, eth0" in str(other.todo)
    down = one(look(ip_addr=json.dumps(ip_addr(state="DOWN"))), "GLOO_SOCKET_IFNAME")
    assert down.blocks and "eth0 is down" in down.message
    bare = one(look(ip_addr=json.dumps(ip_addr(address=""))), "GLOO_SOCKET_IFNAME")
    assert bare.blocks and "eth0 has no address of this node" in bare.message
    assert one(look(environment=environment(GLOO_SOCKET_IFNAME="lo")), "GLOO_SOCKET_IFNAME").blocks
    differ = look(environment=environment(GLOO_SOCKET_IFNAME="eth0,eth1"))
    assert one(differ, "interface").level == "warning"
    unset = {k: v for k, v in ENVIRONMENT.items() if "IFNAME" not in k}
    told = one(look(environment=json.dumps(unset)), "interface")
    assert (told.level, told.blocks) == ("warning", False) and "eth0 (192.0.2.7)" in told.message
    assert one(look("qwen2.5-1.5b/grpo", environment=json.dumps(unset)), "interface").level == "ok"
    nobody_looked = one(look(environment=None), "interface")
    assert nobody_looked.level == "unknown" and "environment.json" in nobody_looked.message


def test_the_first_nodes_address(look: Look) -> None:
    assert one(look(environment=environment(MASTER_ADDR="127.0.0.1")), "MASTER_ADDR").blocks
    assert "this node" in one(look(environment=environment(MASTER_ADDR="192.0.2.7")), "MASTER_ADDR").message


def test_switches_of_the_documents_that_do_nothing_here(look: Look) -> None:
    """Told with what does their work, and no reason to stop."""
    seeds = {
        "VLLM_USE_V1": "1",
        "USE_HDP": "1",
        "ROLLOUT_REBALANCE_ENABLE": "1",
        "HCCL_BUFFERSIZE": "300",
        "ASCEND_NPU_SLEEP_DISABLE": "1",
    }
    found = [f for rows in look(environment=environment(**seeds)).values() for f in rows if f.rule == "environment"]
    assert sorted(f.name for f in found) == sorted(seeds)
    assert {(f.level, f.blocks) for f in found} == {("warning", False)}
    by_name = {f.name: f for f in found}
    assert "does nothing here" in by_name["VLLM_USE_V1"].message
    assert "rollout.rollout_rebalance.enable" in str(by_name["ROLLOUT_REBALANCE_ENABLE"].todo)
    assert "HCCL_BUFFSIZE" in by_name["HCCL_BUFFERSIZE"].message


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("VLLM_ATTENTION_BACKEND", "XFORMERS", "VLLM_ATTENTION_BACKEND is XFORMERS"),
        ("VLLM_DP_SIZE", "32", "VLLM_DP_SIZE is 32"),
        ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", "with expandable_segments:True"),
        ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:24", "with max_split_size_mb"),
    ],
)
def test_variables_that_stop_a_run(look: Look, name: str, value: str, what: str) -> None:
    found = look(environment=environment(**{name: value}))[name]
    assert any(f.blocks and what in f.message for f in found) and all(f"unset {name}" in str(f.todo) for f in found)


def test_a_variable_that_the_recipe_sets_is_the_recipes(look: Look) -> None:
    found = look(environment=environment(TASK_QUEUE_ENABLE="2"))
    told = one(found, "TASK_QUEUE_ENABLE")
    assert (told.level, told.blocks, told.message) == ("warning", False, "2 here, 1 in the recipe")
    assert "ray start" in str(told.todo)


def test_a_misspelt_variable(look: Look) -> None:
    found = one(look(environment=environment(HCCL_CONECT_TIMEOUT="3600")), "HCCL_CONECT_TIMEOUT")
    assert found.message == "did you mean HCCL_CONNECT_TIMEOUT?" and not found.blocks
    assert "HCCL_OP_EXPANSION_MODE" not in look(environment=environment(HCCL_OP_EXPANSION_MODE="AIV"))


def test_files_of_the_recipe(look: Look) -> None:
    gone = one(look(paths=json.dumps(paths(**{TRAIN: None}))), "train")
    assert gone.blocks and gone.message == f"{TRAIN}: nothing is there" and "TRAIN_FILE" in str(gone.todo)
    library = one(look("qwen3-32b/gspo", paths=json.dumps(paths(**{JEMALLOC: None}))), "jemalloc")
    assert library.blocks and JEMALLOC in library.message
    elsewhere = one(look(environment=environment(TRAIN_FILE="/other")), "train")
    assert (elsewhere.level, elsewhere.blocks) == ("unknown", False)
    hub = look(environment=environment(MODEL_PATH="Qwen/Qwen3-8B"), paths=json.dumps(paths(**{"Qwen/Qwen3-8B": None})))
    assert hub["model"][0].level == "warning" and "taken for a name on a hub" in hub["model"][0].message


def test_weights(look: Look) -> None:
    part = look("qwen3-32b/gspo", paths=json.dumps(paths(20 << 30)))
    assert (
        one(part, "weights").blocks
        and "20.0 GiB in /data/model, and 61.0 GiB are wanted" in one(part, "weights").message
    )
    whole = look("qwen3-32b/gspo", paths=json.dumps(paths(65_600_000_000)))
    assert one(whole, "weights").level == "ok"
    unfetched = json.dumps(paths(**{MODEL: None}))
    assert one(look("qwen3-32b/gspo", paths=unfetched), "room for weights").level == "ok"
    assert one(look("qwen3-32b/gspo", paths=unfetched, df=df(_data=(100, 50))), "room for weights").blocks


def test_a_converted_checkpoint_that_is_empty_is_none(look: Look) -> None:
    empty = {**paths()[MCORE], "bytes": 0}
    found = one(look(paths=json.dumps(paths(**{MCORE: empty}))), "converted weights")
    assert found.blocks and "0 B in /data/mcore, and 437.9 GiB are wanted" in found.message
    assert "convert again" in str(found.todo)


def test_a_download_that_is_there_needs_no_room(look: Look) -> None:
    """600 GiB take the converted checkpoint, and would not take the download as well."""
    to_convert = json.dumps(paths(**{MCORE: None}))
    found = one(look(paths=to_convert, df=df(_data=(2000, 600))), "room for converted weights")
    assert found.level == "ok" and found.message.startswith("437.9 GiB as Megatron's checkpoint; 600.0 GiB are free")
    nothing = json.dumps(paths(**{MODEL: None, MCORE: None}))
    both = one(look(paths=nothing, df=df(_data=(2000, 600))), "room for converted weights")
    assert both.blocks and both.message.startswith("437.9 GiB to fetch and 437.9 GiB as Megatron's checkpoint")


def test_random_weights_need_none(look: Look) -> None:
    found = look("qwen3-235b/grpo-random-init", paths=json.dumps(paths(2 << 20)))
    assert not {"weights", "converted weights", "room for weights"} & found.keys()


def test_deepseek_needs_room_for_three(look: Look) -> None:
    """The download in fp8, bf16 of it, and the converted checkpoint."""
    empty = json.dumps(paths(**{MODEL: None, "/data/mcore": None}))
    found = one(look("deepseek-r1/grpo", paths=empty, df=df(_data=(9000, 3000))), "room for converted weights")
    assert found.blocks and "641.3 GiB to fetch and 1.2 TiB as bf16 and 1.2 TiB as Megatron's" in found.message


def test_an_engine_holds_one_sequence_of_the_models_limit(look: Look) -> None:
    """verl 0.9 gives vLLM that limit where max_model_len is not set."""
    config = {**read_models(distribution()).models["Qwen3-235B-A22B"].config, "max_position_embeddings": 262_144}
    little = {"actor_rollout_ref.rollout.gpu_memory_utilization": "0.3"}
    found = one(
        look("qwen3-235b/dapo-longseq", on_newest=True, given=Given(overrides=little), config=json.dumps(config)),
        "sequences at once",
    )
    assert found.blocks and "none of 262,144, the model's limit: the engine does not start" in found.message
    assert "rollout.max_model_len=67584" in str(found.todo)
    shorter = Given(overrides=little | {"actor_rollout_ref.rollout.max_model_len": "67584"})
    assert not one(
        look("qwen3-235b/dapo-longseq", on_newest=True, given=shorter, config=json.dumps(config)), "sequences at once"
    ).blocks


def test_room_for_checkpoints(look: Look) -> None:
    full = one(look(df=df(_ckpt=(1000, 900))), "room for checkpoints")
    assert full.blocks and "3.0 TiB each" in full.message and "900.0 GiB are free on /ckpt" in full.message
    assert "2 are kept: 6.0 TiB" in one(look(df=df(_ckpt=(9000, 8000))), "room for checkpoints").message
    one_alone = Given(overrides={"trainer.max_actor_ckpt_to_keep": "1"})
    kept = one(look(on_newest=True, given=one_alone, df=df(_ckpt=(9000, 8000))), "room for checkpoints")
    assert "one is kept until the next is written: 6.0 TiB" in kept.message
    assert "to_keep=2" not in str(
        one(look(on_newest=True, given=one_alone, df=df(_ckpt=(1000, 900))), "room for checkpoints").todo
    )
    keep_all = Given(overrides={"trainer.max_actor_ckpt_to_keep": "null"})
    all_of_them = one(look(given=keep_all, df=df(_ckpt=(90000, 80000))), "room for checkpoints")
    assert all_of_them.level == "warning" and "all 14 are kept: 41.9 TiB" in all_of_them.message
    assert one(look(given=keep_all, df=df(_ckpt=(9000, 8000))), "room for checkpoints").blocks
    assert one(look("qwen3-235b/grpo-random-init"), "room for checkpoints").message.startswith("none are written")
    relative = one(look(environment=environment(CKPTS_DIR="ckpt/run")), "room for checkpoints")
    assert relative.level == "unknown" and "ckpt/run is relative: give it absolute" in relative.message
    unseen = "\n".join(line for line in df().splitlines() if not line.endswith(("/", "/ckpt")))
    assert "df names no file system for /ckpt/run" in one(look(df=unseen), "room for checkpoints").message


def test_validation_against_training(look: Look) -> None:
    assert "validation answers" not in look()
    assert (
        one(look("qwen2.5-1.5b/grpo"), "validation answers").message == "13 times, 6,500 answers, and 59,904 to train"
    )
    often = Given(sizes={"validation_rows": "5000"}, overrides={"trainer.test_freq": "5"})
    much = one(look("qwen2.5-1.5b/grpo", given=often), "validation answers")
    assert much.level == "warning" and "125,000 answers" in much.message and "test_freq" in str(much.todo)


def test_memory_of_a_device(look: Look) -> None:
    small = look(npu_smi=npu_smi(total=8192))
    assert one(small, "rollout weights").blocks
    assert one(small, "update").blocks
    none_fits = look(npu_smi=npu_smi(total=12000))
    assert (
        one(none_fits, "sequences at once").blocks
        and "the engine does not start" in one(none_fits, "sequences at once").message
    )


def test_an_engine_that_keeps_its_memory_leaves_less_for_the_update(look: Look) -> None:
    kept = Given(overrides={"actor_rollout_ref.rollout.free_cache_engine": "False"})
    found = one(look(given=kept), "update")
    assert one(look(), "update").level == "ok"
    assert found.blocks and "the engine keeps 55.7 GiB of it (free_cache_engine is off)" in found.message


def test_an_engine_cannot_take_more_than_is_free(look: Look) -> None:
    greedy = Given(overrides={"actor_rollout_ref.rollout.gpu_memory_utilization": "0.98"})
    found = one(look(given=greedy), "gpu_memory_utilization")
    assert found.blocks and "0.98 x 64.0 GiB are 62.7 GiB, and 60.9 GiB are free" in found.message
    assert "gpu_memory_utilization" not in look()
    full = one(look(npu_smi=npu_smi(used={(0, 0): 65_500})), "gpu_memory_utilization")
    assert full.blocks and full.todo == "end what else is on the devices"  # and not a share of 0


@pytest.mark.parametrize("share", ["0", "1.5"])
def test_a_share_of_the_device_that_is_none(look: Look, share: str) -> None:
    wrong = Given(overrides={"actor_rollout_ref.rollout.gpu_memory_utilization": share})
    found = one(look(given=wrong), "parallel sizes")
    assert found.blocks and f"gpu_memory_utilization is {share}" in found.message


def test_answers_of_hccn_tool_that_are_none(look: Look) -> None:
    """A device that could not be asked has no address that could be wrong."""
    failed = "dcmi module initialize failed. ret is -8005\n"
    silent = "".join(f"# {n} {what}\n{failed}" for n in range(16) for what in ("ip", "tls", "link"))
    for text in (silent, "garbage\n"):
        found = look(hccn=text)
        assert "addresses of devices" not in found and one(found, "device network").level == "unknown"
    assert one(look(hccn=hccn().replace("\n", "\r\n")), "device network").level == "ok"


def test_ports_that_are_reserved_stay_so(look: Look) -> None:
    found = one(look(reserved_ports="30000-32767\n"), "reserved ports")
    assert "ip_local_reserved_ports=30000-32767,60000-60031" in str(found.todo)


def test_context_parallelism_of_two_runs_out_of_memory(look: Look) -> None:
    """As it did in the practice, where four and eight trained (linked from 002)."""
    levels = {cp: one(look(given=Given(sizes={"cp": cp})), "update").level for cp in ("1", "2", "4", "8")}
    assert levels == {"1": "warning", "2": "warning", "4": "ok", "8": "ok"}


def test_sequences_by_the_mean(look: Look) -> None:
    """256 are asked for: too many by 7,419 tokens, and enough by 3,000."""
    assert one(look(), "sequences at once").level == "warning"
    assert "256 ran" in str(one(look(), "sequences at once").todo)
    fits = one(look(mean=3000), "sequences at once")
    assert fits.level == "ok" and "as long as few are long" in fits.message
    few = Given(overrides={"actor_rollout_ref.rollout.max_num_seqs": "16"})
    assert one(look(given=few), "sequences at once").message.endswith("max_num_seqs is 16")


def test_a_rank_has_no_more_sequences_than_it_is_given(look: Look) -> None:
    """64 x 8 answers on the only rank, and verl's own limit of 1,024."""
    found = one(look("qwen2.5-1.5b/grpo"), "sequences at once")
    assert found.level == "ok" and found.message.endswith("max_num_seqs is 1024, and a rank is given 512")


def test_the_models_own_configuration() -> None:
    own: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 512,
    }
    case = case_of("qwen3-8b/grpo", Machine({"config.json": json.dumps(own)}, "here", NOW))
    assert case.model_source == "its config.json" and case.model.parameters == 139_648  # type: ignore[union-attr]
    other = case_of("qwen3-8b/grpo", Machine({"config.json": json.dumps({**own, "model_type": "mamba"})}, "here", NOW))
    (told,) = [f for f in all_findings(other) if f.rule == "device memory"]
    assert told.level == "unknown" and "model_type is mamba" in told.message


def test_sizes_that_do_not_divide_the_model(look: Look) -> None:
    """23 layers in the first and 23 in the last stage leave 48: for five stages, or for none."""
    for stages in ("7", "2"):
        found = one(look(given=Given(sizes={"pp": stages})), "parallel sizes")
        assert found.blocks and f"94 layers over {stages} pipeline stages (first 23, last 23)" in found.message


def tree(**changed: Any) -> str:
    return json.dumps(workspace(trees=[{**workspace()["trees"][0], **changed}]))


@pytest.mark.parametrize(
    ("text", "name", "what"),
    [
        (json.dumps(workspace("qwen3-32b")), "workspace", "/ws holds qwen3-32b, not qwen3-235b"),
        (json.dumps(workspace(interrupted="apply")), "workspace", "an interrupted apply"),
        (json.dumps(workspace(without=["moe_update_weights"])), "features", "needs moe_update_weights"),
        (tree(edits=["verl/a.py"]), "verl", "changed since: verl/a.py"),
        (tree(lock="differs from the lock: apply again"), "verl", "differs from the lock"),
        (tree(problem="HEAD is abc"), "verl", "HEAD is abc"),
        (tree(left_out=[{"feature": "grouped_weight_names"}]), "features", "needs grouped_weight_names"),
    ],
)
def test_the_workspace(look: Look, text: str, name: str, what: str) -> None:
    found = one(look(workspace=text), name)
    assert found.blocks and what in found.message and "patchctl apply --profile qwen3-235b" in str(found.todo)


def test_another_tree_is_imported(look: Look) -> None:
    """But for the tree that training is started in: it comes first."""
    rows = [{"package": "vllm", "place": "/usr/lib/vllm", "ours": False, "error": "another one: 3 of 9 files differ"}]
    other = {**workspace()["trees"][0], "upstream": "vllm", "folder": "/ws/vllm", "imports": rows}
    own = {**workspace()["trees"][0], "imports": [{"package": "verl", "place": None, "ours": False, "error": None}]}
    found = one(look(workspace=json.dumps(workspace(trees=[own, other], python="/opt/python3"))), "imports")
    assert found.blocks
    assert found.message == "/opt/python3 imports vllm from /usr/lib/vllm (another one: 3 of 9 files differ)"
    assert "patchctl install --workspace /ws --python /opt/python3" in str(found.todo)
    fine = one(look(workspace=json.dumps(workspace(trees=[own], python="/opt/python3"))), "imports")
    assert fine.level == "ok"


def test_a_workspace_of_another_profile_with_the_same_stacks(look: Look) -> None:
    stacks = distribution().profile("qwen3-235b").stacks
    trees = [{**workspace()["trees"][0], "upstream": upstream, "stack": stack} for upstream, stack in stacks.items()]
    held = workspace("qwen3-32b", trees=trees)
    found = one(look(workspace=json.dumps(held)), "workspace")
    assert (found.level, found.message) == ("ok", "/ws holds qwen3-32b, which has the stacks of qwen3-235b")
    for fewer in (trees[1:], [{**trees[0], "stack": "v9"}, *trees[1:]], [{**trees[0], "patches": []}, *trees[1:]]):
        assert one(look(workspace=json.dumps({**held, "trees": fewer})), "workspace").blocks


def test_a_workspace_below_home(look: Look) -> None:
    assert one(look(workspace=json.dumps(workspace(workspace="/home/me/ws"))), "place").level == "warning"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=9),
    lambda x: (
        st.lists(x, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    MODEL,
                    TRAIN,
                    "kind",
                    "bytes",
                    "modified",
                    "trees",
                    "edits",
                    "left_out",
                    "without",
                    "flags",
                    "addr_info",
                    "ifname",
                    "path",
                    "model_type",
                    "num_hidden_layers",
                    "HCCL_IF_BASE_PORT",
                    "patches",
                    "imports",
                    "name",
                    "version",
                ]
            ),
            x,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.heavy("dozens of recordings that are drawn")
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PROBES)), st.one_of(JSON.map(json.dumps), st.text(max_size=80)))
def test_no_recording_ends_in_a_traceback(name: str, text: str) -> None:
    machine = Machine({**texts(), name: text}, "a folder", NOW, live=False)
    assert all_findings(case_of("qwen3-235b/grpo", machine))


def test_sizes_that_are_none(look: Look) -> None:
    negative = Given(overrides={"actor_rollout_ref.rollout.tensor_model_parallel_size": "-4"})
    assert "tensor_model_parallel_size is -4" in one(look(given=negative), "parallel sizes").message


def test_what_a_recipe_says_was_not_seen_is_a_note(look: Look) -> None:
    for title in ("deepseek-r1/grpo", "qwen3-235b/grpo-hdp"):
        found = look(title)["limits"]
        assert len(found) == len(case_of(title).run.limits) > 0
        assert all(f.level == "note" and not f.blocks for f in found)
    assert "limits" not in look("qwen3-235b/grpo")


def test_what_a_recipe_says_stops_any_run_blocks_until_it_is_accepted() -> None:
    case = case_of("qwen3-235b/grpo-hdp")
    case = replace(case, run=replace(case.run, stops=case.run.limits))
    for accepted in (False, True):
        found = [f for f in all_findings(case, ["limits"] if accepted else []) if f.name == "limits"]
        assert [(f.level, f.blocks, f.accepted) for f in found] == [("error", not accepted, accepted)]
        assert all("--accept limits" in str(f.todo) for f in found)


def test_what_stops_a_recipe_is_among_its_limits() -> None:
    newest = distribution().each_release()[0]
    run = resolve(read_recipes(newest), "deepseek-r1", "grpo")
    assert len(run.stops) == 1 and "mbridge" in run.stops[0] and {*run.stops} < {*run.limits}


def of_verl(version: str, folder: Path, **changed: str | None) -> Case:
    """The case of a recipe as if its profile had another verl."""
    case = case_of("qwen3-235b/grpo", recorded(write_machine(folder / version, "qwen3-235b", **changed)))
    found = {"verl": version.removeprefix("v")} if version[1:2].isdigit() else {}
    return replace(case, run=replace(case.run, versions={**case.run.versions, "verl": None} | found))


@pytest.mark.parametrize(("version", "wrong"), [("v0.6.0", False), ("v0.9.0", True), ("main", False)])
def test_a_container_without_card_one(tmp_path: Path, version: str, wrong: bool) -> None:
    first_away = "\n".join(line for line in npu_smi(cards=4).splitlines() if not line.startswith("| 1     Ascend"))
    case = of_verl(version, tmp_path, npu_smi=first_away)
    found = [f for f in check_devices(case) if f.name == "card 1"]
    assert bool(found) == wrong
    if found:
        assert found[0].blocks and "ASCEND_VISIBLE_DEVICES=0,2,3" in str(found[0].todo)
        for cards, told in (("0,2,3", False), ("4-7", True), ("all", True), ("", True)):
            named = json.dumps({**json.loads(environment()), "ASCEND_VISIBLE_DEVICES": cards})
            case = of_verl(version, tmp_path / f"named{cards}", npu_smi=first_away, environment=named)
            assert bool([f for f in check_devices(case) if f.name == "card 1"]) == told, cards


@pytest.mark.parametrize(
    ("version", "driver", "wrong"),
    [
        ("v0.9.0", "25.2.0", True),
        ("v0.9.0", "25.3.rc1.2", False),
        ("v0.9.0", "25.5.0", False),
        ("v0.6.0", "25.2.0", False),
    ],
)
def test_shared_memory_for_weights_where_devices_share_none(
    tmp_path: Path, version: str, driver: str, wrong: bool
) -> None:
    case = of_verl(version, tmp_path, df=df(**{"/dev/shm": (8, 8)}), driver=f"Version={driver}\n")
    (found,) = [f for f in check_host(case) if f.name == "/dev/shm"]
    assert (found.level == "error", "moves weights through it, 32.0 GiB at once" in found.message) == (wrong, wrong)
