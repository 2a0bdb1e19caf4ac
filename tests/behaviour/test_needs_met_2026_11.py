"""Needs of features of the oldest release that upstream meets since, where no patch is: `make test-behaviour` runs them.

The trees may be patched or not: nothing of these features is in either.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import PATCHES, REPO, Upstream
from models import TinyModels

ENGINE: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info",
        "vllm-ascend-dist-info",
        "torch_npu",
        "npu_engine",
        "npu_engine_0_23",
        "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 300,
}
NGRAM: dict[str, Any] = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1}
CLOSE = 1e-5  # float32, against Hugging Face's implementation


def test_npu_expandable_segments(upstream: Upstream) -> None:
    """verl tells torch_npu's allocator what it tells CUDA's."""
    upstream.skip_unless("verl", ">=0.9")
    probe = "patches/verl/shared/npu_expandable_segments/tests/probe_expandable_segments.py"
    made: Any = upstream.run(probe, "npu", need=["verl"], standins=["torch_npu"])
    assert made["device"] == "npu"
    told = [f"expandable_segments:{enable}" for enable in (False, True, False, True)]
    assert made["plain"] == {"told": told, "warnings": []}
    # An older torch_npu is not told, and nothing ends with an error.
    assert made["older torch_npu"]["told"] == []


def test_expert_bias_float32(upstream: Upstream) -> None:
    """Megatron-LM loads and gives away a router's bias in float32, also before the model goes forward."""
    upstream.skip_unless("megatron-lm", ">=0.16")
    made: Any = upstream.run("probe_expert_bias.py", need=["megatron-lm"], standins=["megatron_cpu"])
    assert made["given away"] == ["torch.float32"]
    assert made["loaded"] == [["torch.float32", made["saved"]]] * 2


@pytest.fixture(scope="module")
def te_layers(upstream: Upstream) -> Any:
    upstream.skip_unless("megatron-lm", ">=0.16")
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
    upstream.skip_unless("vllm-ascend", ">=0.23")
    probe = REPO / "patches/vllm-ascend/shared/spec_decode_logprobs/tests/probe_spec_decode_logprobs.py"
    made: Any = upstream.run("probe_on_0_23.py", probe, tiny_models.qwen3, **ENGINE)
    assert made["accepted"] > 0
    assert [answer["tokens"] for answer in made["answers"]] == [40, 24, 32]
    assert max(answer["difference"] for answer in made["answers"]) < CLOSE


def updated(upstream: Upstream, standin: str, model: object, *ways: str, **more: Any) -> Any:
    """What an engine answers before and after updates by verl's own transfer, for each way."""
    upstream.skip_unless("verl", ">=0.9")
    standins = [*ENGINE["standins"], "npu_experts_0_23", "npu_latent_0_23"]
    settings = {**ENGINE, "need": ["verl", *ENGINE["need"]], "standins": standins, "timeout": 600}
    return upstream.run("verl/probe_weight_update_v1.py", standin, model, *ways, **(settings | more))


def test_moe_update_weights(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    """New weights of experts give Hugging Face's tokens, whether the engine has slept or not, and stay where graphs read them."""
    model = "patches/verl/shared/moe_update_weights/tests/probe_moe_update_model.py"
    assert upstream.run(model, tiny_models.qwen3_moe, tmp_path / "oblong") == [96, 64]  # of w13
    made = updated(upstream, "npu_experts_0_23", tmp_path / "oblong", "awake", "asleep")
    assert len({str(answers) for answers in made["hf"]}) == 3  # the fourth are those of the second again
    for way in ("awake", "asleep"):
        assert made[way] == {"tokens": made["hf"], "kept": 4, "in place": True}


def test_experts_that_are_balanced_are_updated_by_verl(
    upstream: Upstream, tiny_models: TinyModels, tmp_path: Path
) -> None:
    """eplb_reset around verl's own transfer, as its workers sleep, wake and update, on two ranks: experts have moved before each sleep but
    the first, and after each update the tokens are Hugging Face's, before experts move and after."""
    if why := upstream.lacks("vllm-ascend", "eplb_reset"):
        pytest.skip(why)
    model = "patches/verl/shared/moe_update_weights/tests/probe_moe_update_model.py"
    upstream.run(model, tiny_models.qwen3_moe, tmp_path / "oblong")
    env = {"VLLM_ASCEND_ENABLE_NZ": "0", "DYNAMIC_EPLB": "true"}
    for made in updated(upstream, "npu_experts_0_23", tmp_path / "oblong", "balanced", procs=2, env=env):
        found, (first, *rest) = made["balanced"], made["hf"]
        assert found["tokens"] == [first, *([one, one] for one in rest)]
        assert found["moved"][0] == 0
        assert len(found["moved"]) == 4
        assert all(found["moved"][1:])
        assert found["in place"]


def test_mla_update_weights(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    """New weights of a DeepSeek-V3 too: decoding goes on with projections made of the new kv_b_proj, where the old ones were."""
    model = "patches/verl/shared/mla_update_weights/tests/probe_mla_model.py"
    upstream.run(model, tiny_models.qwen3, tmp_path / "deepseek")
    made = updated(upstream, "npu_latent_0_23", tmp_path / "deepseek", "awake", "asleep")
    assert len({str(answers) for answers in made["hf"]}) == 3
    for way in ("awake", "asleep"):  # of three layers, two of which have experts
        assert made[way] == {"tokens": made["hf"], "kept": 2 * 2 + 3 * 2, "in place": True}


def test_moe_update_weights_of_a_square_w13_is_not_met(upstream: Upstream, tiny_models: TinyModels) -> None:
    """verl's loader tells by a side's length which way a weight lies. Where both are as long it turns it for every expert, and already what
    the engine loads at its start is wrong. Without verl it is right: test_experts_0_23.py has the same model."""
    made = updated(upstream, "npu_experts_0_23", tiny_models.qwen3_moe, "awake")
    right = [tokens == hf for tokens, hf in zip(made["awake"]["tokens"], made["hf"], strict=True)]
    assert right == [False] * 4


@pytest.mark.parametrize(("drafts", "shapes"), [(0, [1, 2, 4]), (3, [4, 8, 16])])
def test_npugraph_ex_static_kernel(upstream: Upstream, tiny_models: TinyModels, drafts: int, shapes: list[int]) -> None:
    """Static kernels are asked for at the sizes of decode: up to four requests of one token and its drafts."""
    upstream.skip_unless("vllm-ascend", ">=0.23")
    options: dict[str, Any] = {
        "additional_config": {"ascend_compilation_config": {"enable_npugraph_ex": True, "enable_static_kernel": True}},
        "compilation_config": {
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64],
        },
    }
    if drafts:
        options["speculative_config"] = NGRAM | {"num_speculative_tokens": drafts}
    folder = REPO / "patches/vllm-ascend/shared/npugraph_ex_static_kernel/tests"  # of recording_torchair.py
    made: Any = upstream.run("probe_static_kernel_0_23.py", folder, tiny_models.qwen3, json.dumps(options), **ENGINE)
    assert made == {"result": [2.0, 2.0], "static_kernel": True, "static_shapes": shapes}


def test_hf_to_mcore_dense_cpu_is_not_needed(upstream: Upstream) -> None:
    """verl v0.6.0 needed a converted checkpoint where there was no bridge; v0.9.0 has its weights from the bridge, and refuses to be without."""
    upstream.skip_unless("verl", ">=0.9")
    made: Any = upstream.run(
        "verl/probe_bridge_v1.py", need=["verl", "megatron-lm"], standins=["torch_npu", "megatron_cpu"], timeout=300
    )
    assert made["default"] == {"bridge": True, "checkpoint": False}
    assert made["refused"]["False"] == "use_mbridge must be True"
    assert "use_mbridge" not in made["refused"]["True"]


def test_fia_tnd_padding(upstream: Upstream) -> None:
    """Where a full graph pads the query its last cumulated length is the graph's number of tokens, and running requests keep theirs.

    The runner's own function, for every batch of up to four requests, all places taken too; no graph is captured here.
    """
    upstream.skip_unless("vllm-ascend", ">=0.23")
    made: Any = upstream.run("probe_fia_lengths_0_23.py", **ENGINE)
    for kind in ("mixed", "mixed, with drafts", "decode", "decode, with drafts"):
        assert made[kind]["padded"] > 0
        assert made[kind]["wrong"] == []


def test_what_verl_packs_with_is_dynamic_cp_groups(upstream: Upstream) -> None:
    """hdp: verl has it, and asks Megatron-LM for groups and a packing by names that core_v0.16.0 does not have without that patch."""
    upstream.skip_unless("megatron-lm", ">=0.16")
    verl, megatron = upstream.tree("verl"), upstream.tree("megatron-lm")
    patched = upstream.lacks("megatron-lm", "dynamic_cp_groups") is None
    for asking, having, name in (
        ("verl/models/mcore/util.py", "megatron/core/parallel_state.py", "get_dynamic_data_context_parallel_groups"),
        ("verl/utils/dynamic_cp_scheduler.py", "megatron/core/datasets/data_schedule.py", "DefaultDynamicCPScheduler"),
    ):
        assert name in (verl / asking).read_text()
        assert (name in (megatron / having).read_text()) is patched


ROLLOUT = "actor_rollout_ref.rollout"
GRAPHS = [
    f"{ROLLOUT}.cudagraph_capture_sizes=[4,8]",
    f"+{ROLLOUT}.engine_kwargs.vllm.compilation_config.cudagraph_mode=FULL_DECODE_ONLY",
    f"+{ROLLOUT}.engine_kwargs.vllm.speculative_config={{method:ngram,num_speculative_tokens:3,prompt_lookup_max:2,prompt_lookup_min:1}}",
    f"+{ROLLOUT}.engine_kwargs.vllm.additional_config.ascend_compilation_config={{enable_npugraph_ex:True,enable_static_kernel:True}}",
]
PARALLEL = [f"{ROLLOUT}.{kind}_parallel_size=2" for kind in ("data", "expert")]


@pytest.fixture(scope="module")
def would_start(upstream: Upstream, tiny_models: TinyModels) -> Any:
    """What verl's vllm server would start its engine with: as it comes, with GRAPHS, and with PARALLEL.

    Its module imports under vllm 0.23 without vllm_import_compat.
    """
    upstream.skip_unless("verl", ">=0.9")
    settings = {**ENGINE, "need": ["verl", *ENGINE["need"]], "timeout": 600}
    common = [f"{ROLLOUT}.{key}" for key in ("name=vllm", "max_model_len=256", "tensor_model_parallel_size=1")]
    runs = [json.dumps([*common, *more]) for more in ([], GRAPHS, PARALLEL)]
    return upstream.run("verl/probe_server_settings_v1.py", tiny_models.qwen3_moe, *runs, **settings)


def test_spec_and_graph_config(would_start: Any) -> None:
    """Graph mode, capture sizes, speculation and vllm-ascend's own settings get to the engine's configuration as they are written."""
    made = would_start[1]
    assert made["cudagraph_mode"] == "FULL_DECODE_ONLY"
    assert made["cudagraph_capture_sizes"] == [4, 8]
    assert made["speculative"] == ["ngram", 3, 2]
    assert made["ascend"]["enable_npugraph_ex"] is made["ascend"]["enable_static_kernel"] is True
    assert would_start[0]["cudagraph_mode"] != "FULL_DECODE_ONLY"
    assert would_start[0]["speculative"] is None


def test_rollout_data_parallel(would_start: Any) -> None:
    """The engine of a replica is one of two data parallel ranks, its experts over both of them; without the settings it is one alone."""
    plain, _, made = would_start
    assert (made["parallel"], made["expert_parallel"]) == ([2, 2, 1], True)
    assert (plain["parallel"], plain["expert_parallel"]) == ([1, 1, 1], False)


SYNCHRONOUS_ROLLOUT = {
    "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py": ["rollout_progress", "rollout_torch_compile"],
    "verl/workers/fsdp_workers.py": ["data_rebalance_seeds"],
    "verl/workers/megatron_workers.py": ["data_rebalance_seeds", "rollout_torch_compile"],
    "recipe/dapo/dapo_ray_trainer.py": ["data_rebalance_dapo"],
}


@pytest.mark.parametrize("file", SYNCHRONOUS_ROLLOUT)
def test_what_features_of_the_synchronous_rollout_patched_is_gone(upstream: Upstream, file: str) -> None:
    upstream.skip_unless("verl", ">=0.9")
    for feature in SYNCHRONOUS_ROLLOUT[file]:
        for patch in PATCHES.glob(f"verl/*/{feature}/*.patch"):
            assert f"diff --git a/{file} " in patch.read_text()
    tree = upstream.tree("verl")
    assert (tree / "verl/workers").is_dir()
    assert not (tree / file).exists()


def test_no_trainer_asks_its_workers_for_answers(upstream: Upstream) -> None:
    """data_rebalance orders what fit hands to `actor_rollout_wg.generate_sequences`: nothing calls that any more."""
    upstream.skip_unless("verl", ">=0.9")
    call = "actor_rollout_wg.generate_sequences("
    for patch in PATCHES.glob("verl/*/data_rebalance/*.patch"):
        assert call in patch.read_text()
    sources = list((upstream.tree("verl") / "verl").rglob("*.py"))
    assert len(sources) > 100
    assert [file for file in sources if call in file.read_text()] == []


def test_no_cache_is_older_than_the_weights(upstream: Upstream, tiny_models: TinyModels) -> None:
    """vllm alone answers from keys and values of weights that are gone; what verl calls after an update, and vllm's sleep, forget them."""
    upstream.skip_unless("vllm-ascend", ">=0.23")
    settings = {**ENGINE, "need": ["verl", *ENGINE["need"]], "timeout": 600}
    made: Any = upstream.run("verl/probe_stale_caches_v1.py", tiny_models.qwen3, **settings)
    cached = {step: found[0] for step, found in made.items()}
    block = 128
    assert cached == {
        "first": 0,
        "again": block,
        "loaded": block,
        "loaded, and cleared by verl": 0,
        "loaded asleep": 0,
    }
    fresh = [step for step, (_, tokens, hugging_faces) in made.items() if tokens == hugging_faces]
    assert fresh == ["first", "again", "loaded, and cleared by verl", "loaded asleep"]
    assert len({tuple(made[step][2]) for step in ("first", "loaded", "loaded asleep")}) == 3


@pytest.fixture(scope="module")
def experts(upstream: Upstream, tiny_models: TinyModels) -> Any:
    """Experts of verl's Megatron engine on two ranks that share them, from a Hugging Face model to what an update sends."""
    upstream.skip_unless("verl", ">=0.9")
    standins = ["torch_npu", "megatron_cpu", "npu_attention", "npu_training", "npu_training_0_9", "torchvision"]
    need = ["verl", "megatron-lm", "mindspeed"]
    return upstream.run(
        "verl/probe_experts_v1.py", tiny_models.qwen3_moe, need=need, standins=standins, procs=2, timeout=400
    )


def test_no_experts_are_grouped(experts: Any) -> None:
    """alltoall_overlap_load, hf_to_mcore_grouped and grouped_weight_names are for weight1 and weight2, which MindSpeed's all-to-all overlap
    makes of a layer's experts: its layer gives them one argument more than they take, and no model is made with it."""
    for rank in experts:
        assert rank["trained"] == [
            "linear_fc1.weight0",
            "linear_fc1.weight1",
            "linear_fc2.weight0",
            "linear_fc2.weight1",
        ]
        assert rank["overlap"].startswith(
            "TypeError: AlltoAllOverLapGmmExpertsImpl.__init__() takes from 2 to 3 positional arguments but 4 were given"
        )


def test_experts_come_and_go_through_the_bridge(experts: Any) -> None:
    """None of what dpskv3_group_routing, grouped_weight_names and ep_alltoallv_reshard patch is asked; each weight is the model's."""
    for rank in experts:
        assert (rank["asked"], rank["wrong"], rank["sent"]) == ([], [], 45)


def test_ep_alltoallv_reshard_is_not_met(experts: Any) -> None:
    """A rank that trains two of four experts is given all of them, three matrices in each of two layers, for its update. At once there is one
    of each of the two ranks, not all four of a layer: it grows with the number of ranks."""
    assert [rank["experts sent"] for rank in experts] == [4 * 3 * 2] * 2
    assert [rank["at once"] for rank in experts] == [2.0] * 2


CONVERTS = {
    "verl/model_merger/megatron_model_merger.py",
    "scripts/converter_hf_to_mcore.py",
    "verl/models/mcore/registry.py",
}


@pytest.mark.parametrize(
    ("name", "files"),
    [("hf_to_mcore_config", CONVERTS), ("per_tensor_generator", {"verl/utils/megatron_utils.py"})],
)
def test_no_engine_calls_what_was_patched(upstream: Upstream, name: str, files: set[str]) -> None:
    """DeepSeek's groups of experts are left out of what converts checkpoints alone, which routes nothing."""
    upstream.skip_unless("verl", ">=0.9")
    tree = upstream.tree("verl")
    sources = [*(tree / "verl").rglob("*.py"), *(tree / "scripts").rglob("*.py")]
    assert {str(file.relative_to(tree)) for file in sources if f"{name}(" in file.read_text()} == files
