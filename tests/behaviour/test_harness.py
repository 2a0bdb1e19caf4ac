"""The harness itself: what a probe sees, and how its failures are reported."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from harness import Upstream
from models import TinyModels
from pins import stack_of
from processes import free_port
from trees import features_of, given_trees, trees_of_report

PROBE = "tests/behaviour/harness_probe.py"


def test_environment_of_a_probe_is_clean(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "of the person who runs the tests")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    seen = upstream.run(PROBE, "environment", env={"ADDED": "1"})
    assert seen["ADDED"] == "1"
    assert [Path(folder).name for folder in seen["PYTHONPATH"].split(os.pathsep)] == ["site"]
    assert seen["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert not {"VLLM_PLUGINS", "https_proxy"} & set(seen)


def test_trees_come_before_folders_of_standins(upstream: Upstream) -> None:
    seen = upstream.run(PROBE, "environment", need=["megatron-lm"], standins=["torch_npu"])
    _, tree, standin = seen["PYTHONPATH"].split(os.pathsep)
    assert Path(tree) == upstream.tree("megatron-lm")
    assert standin.endswith("standins/torch_npu")


def test_processes_reach_each_other(upstream: Upstream) -> None:
    assert upstream.run(PROBE, "sum-of-ranks", procs=3) == [3.0, 3.0, 3.0]


def test_a_failing_rank_is_shown_and_the_waiting_ones_are_killed(upstream: Upstream) -> None:
    with pytest.raises(AssertionError, match=r"rank 1.*ended with 1(.|\n)*ValueError: rank one gives up"):
        upstream.run(PROBE, "one-rank-fails", procs=2, timeout=60)


def test_timeout_kills_grandchildren(upstream: Upstream) -> None:
    with pytest.raises(AssertionError, match=r"was killed after(.|\n)*grandchild \d+") as failure:
        upstream.run(PROBE, "hang-with-grandchild", timeout=5)
    pid = int(str(failure.value).partition("grandchild ")[2].split()[0])
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.1)  # the signal is sent; on a loaded machine the process takes a moment to go
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether the process is there and not merely waiting to be reaped by whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_output_without_json_is_a_failure(upstream: Upstream) -> None:
    with pytest.raises(AssertionError, match="no JSON"):
        upstream.run(PROBE, "no-json")


def test_unknown_standin_names_the_known_ones(upstream: Upstream) -> None:
    with pytest.raises(LookupError, match="torch_npu"):
        upstream.run(PROBE, "environment", standins=["torch_npux"])


def test_missing_tree_is_skipped_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="no tree of verl: the folder given"):
        given_trees(tmp_path).path("verl")


def test_what_apply_skipped_or_left_out_is_skipped_with_its_reason(tmp_path: Path) -> None:
    lost, other, *_ = sorted(features_of(stack_of("verl")))
    left_out = [{"feature": lost, "reason": "recipe/ is not in the sdist"}]
    report = {
        "schema": "patchctl.apply/1",
        "trees": {"verl": {"folder": "verl", "stack": stack_of("verl").name, "left_out": left_out}},
        "skipped": [{"upstream": "mindspeed", "tried": [["https://example.org/m.git", "no route"]]}],
    }
    trees = trees_of_report(tmp_path, report)
    assert trees.path("verl") == tmp_path / "verl"
    upstream = Upstream(trees, tmp_path)
    assert upstream.lacks("verl", other) is None
    upstream.feature = ("verl", lost)
    with pytest.raises(pytest.skip.Exception, match=rf"{lost} is not in the tree of verl: recipe/"):
        upstream.tree("verl")
    with pytest.raises(pytest.skip.Exception, match=r"mindspeed: .* tried https://example.org/m.git: no route"):
        trees.path("mindspeed")


def test_a_port_is_none_that_others_are_given() -> None:
    """Seen: EADDRINUSE, since gloo's sockets had been given the port that was to be a rank's; a head of Ray that did not start."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ray_workers_last = 19_999  # `ray start --max-worker-port`, its default
    assert {ray_workers_last < free_port() < first for _ in range(50)} == {True}


def test_vllm_standins_choose_the_platform(upstream: Upstream) -> None:
    standins = ["torch_npu", "vllm-cpu-dist-info"]
    assert upstream.run(PROBE, "vllm-platform", need=["vllm"], standins=standins) == "CpuPlatform"
    need, standins = ["vllm-ascend", "vllm"], [*standins, "vllm-ascend-dist-info"]
    assert upstream.run(PROBE, "vllm-platform", need=need, standins=standins) == "NPUPlatform"


def test_tiny_models_load(upstream: Upstream, tiny_models: TinyModels) -> None:
    shapes = upstream.run(PROBE, "load-models", tiny_models.qwen3, tiny_models.qwen3_moe)
    assert shapes == [["Qwen3ForCausalLM", [1, 3, 512]], ["Qwen3MoeForCausalLM", [1, 3, 512]]]
