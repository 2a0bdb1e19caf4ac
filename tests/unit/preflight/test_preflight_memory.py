"""The memory model against the figures of a document linked from 002 (docs/preflight.md): what it reproduces, and what not.

The document writes GB and MB for 2^30 and 2^20 bytes. Its figures are rounded to what is written here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from preflight_cases import case_of
from test_preflight_model import model

from patchctl.training.models import Model
from patchctl.training.preflight.memory import (
    BF16,
    FP32,
    Engine,
    Layout,
    engine_weights,
    gathered_layer,
    hybrid_buffers,
    kv_bytes,
    layer_activations,
    optimizer_bytes,
    prefill_bytes,
    sequences_that_fit,
    sharded_training,
    stage_weights,
    worst_imbalance,
)
from patchctl.training.preflight.sizes import BadSizes, Training, engine_of, moving_buffers, training_of
from patchctl.training.recipes.resolve import Given

GIB, MIB = 1 << 30, 1 << 20
K32 = 32768
BIG = model("Qwen3-235B-A22B")
DEEPSEEK = model("DeepSeek-R1")
EP128 = Engine(tensor=4, data=32, spread_experts=True)
STAGE = Layout(devices=128, tensor=4, pipeline=4, context=4, expert=32, stage_layers=24)


@pytest.mark.parametrize(
    ("parts", "published"),
    [(("embedding", "head"), 0.58), (("qkv",), 1.65), (("output",), 1.47), (("experts",), 3.30), (("gate",), 0.09)],
    ids=lambda p: "+".join(p) if isinstance(p, tuple) else "",
)
def test_weights_of_the_rollout(parts: tuple[str, ...], published: float) -> None:
    weights = engine_weights(BIG, EP128)
    assert sum(weights[part] for part in parts) / GIB == pytest.approx(published, abs=0.006)


def test_all_weights_of_the_rollout() -> None:
    """7.09 is the sum of the rounded items, without norms (1 MB)."""
    assert sum(engine_weights(BIG, EP128).values()) / GIB == pytest.approx(7.09, abs=0.01)


def test_kv_cache_of_the_longest_sequence() -> None:
    assert kv_bytes(BIG, 4) * K32 / GIB == pytest.approx(1.47, abs=0.005)


def test_sequences_at_once() -> None:
    """30 to 40 by the longest, about 128 by the mean: the document leaves room for what the engine works in."""
    left = int(0.87 * 64 * GIB) - sum(engine_weights(BIG, EP128).values())
    assert 30 <= sequences_that_fit(left, BIG, 4, K32) <= 40
    working = prefill_bytes(BIG, EP128, K32, 8192)
    assert 128 <= sequences_that_fit(left - working, BIG, 4, 7419) <= 145


def test_weights_and_gradients_of_training() -> None:
    """4.17 and 8.34 leave the router out, which each device has whole: 24 x 4096 x 128 x 2 bytes."""
    counted = stage_weights(BIG, STAGE)
    router = counted["gate"] * BF16
    assert router == 24 * 4096 * 128 * 2
    assert (sum(counted.values()) * BF16 - router) / GIB == pytest.approx(4.17, abs=0.005)
    assert (sum(counted.values()) - counted["gate"]) * FP32 / GIB == pytest.approx(8.34, abs=0.005)
    assert sum(counted.values()) * BF16 / GIB == pytest.approx(4.20, abs=0.005)


@pytest.mark.parametrize(("context", "attention", "mlp"), [(8, 75, 176), (4, 150, 352), (2, 300, 704), (1, 600, 1408)])
def test_activations_of_a_layer(context: int, attention: int, mlp: int) -> None:
    found = layer_activations(BIG, replace(STAGE, context=context), K32)
    assert (found.attention / MIB, found.mlp / MIB) == (attention, mlp)


@pytest.mark.parametrize(("context", "published"), [(8, 2.6), (4, 5.2), (2, 10.3), (1, 20.6)])
def test_worst_case_of_the_experts_is_not_reproduced(context: int, published: float) -> None:
    """Published are 15 times the balanced share. Of 32 devices with 4 experts each, one can get all 8 choices of no token, but
    4 of every one: 16 times. So ours is larger, by that one share."""
    found = layer_activations(BIG, replace(STAGE, context=context), K32)
    assert 15 * found.mlp / GIB == pytest.approx(published, abs=0.05)
    assert found.worst == 16 * found.mlp


def test_worst_imbalance() -> None:
    assert BIG.experts is not None
    assert [worst_imbalance(BIG.experts, ranks) for ranks in (1, 16, 32, 64, 128)] == [1, 16, 16, 16, 16]


def test_the_optimizer_is_spread_over_replicas() -> None:
    """Dense parameters over 8 devices with the same shard, experts over one: 128 / (4 stages x 32)."""
    counted = stage_weights(BIG, STAGE)
    dense = sum(counted.values()) - counted["experts"]
    assert optimizer_bytes(counted, STAGE) == 12 * dense // 8 + 12 * counted["experts"]


def test_first_and_last_stage_have_embedding_and_head() -> None:
    words = 151936 * 4096 // 4
    middle = sum(stage_weights(BIG, STAGE).values())
    assert sum(stage_weights(BIG, STAGE, first=True).values()) - middle == words
    assert sum(stage_weights(BIG, STAGE, last=True).values()) - middle == words


def test_keys_are_repeated_where_ranks_are_more_than_heads() -> None:
    by_four, by_eight = (engine_weights(BIG, Engine(t))["qkv"] for t in (4, 8))
    keys = 2 * BIG.layers * 2 * 4096 * 128
    assert by_four - keys == 2 * (by_eight - keys)
    assert kv_bytes(BIG, 8) == kv_bytes(BIG, 4)


def test_experts_that_are_not_spread_are_cut() -> None:
    spread, cut = (engine_weights(BIG, Engine(4, 2, s))["experts"] for s in (True, False))
    assert spread == cut
    uneven = engine_weights(BIG, Engine(4, 24, spread_experts=True))["experts"]
    assert uneven == 2 * engine_weights(BIG, EP128)["experts"]  # 128 experts over 96 devices: some have two


def test_latent_attention_keeps_one_vector_for_all_heads() -> None:
    assert kv_bytes(DEEPSEEK, 2) == kv_bytes(DEEPSEEK, 8) == 61 * (512 + 64) * 2


def test_deepseek_with_an_expert_a_device() -> None:
    weights = engine_weights(DEEPSEEK, Engine(2, 128, spread_experts=True))
    assert weights["experts"] == 58 * 3 * 7168 * 2048 * 2
    assert sum(weights.values()) / GIB == pytest.approx(21.66, abs=0.01)


def test_blocks_are_whole() -> None:
    each = 128 * kv_bytes(BIG, 4)
    assert sequences_that_fit(10 * each, BIG, 4, 128) == 10
    assert sequences_that_fit(10 * each, BIG, 4, 129) == 5
    assert sequences_that_fit(-1, BIG, 4, 129) == 0


def test_fsdp_has_sixteen_bytes_a_parameter() -> None:
    small = model("Qwen3-32B")
    assert sum(sharded_training(small, 64).values()) == pytest.approx(16 * small.parameters / 64, rel=1e-6)
    assert gathered_layer(small) == max(2 * 151936 * 5120, gathered_layer(small))


def test_the_recipes_sizes_divide() -> None:
    for title in (
        "qwen3-235b/grpo",
        "qwen3-32b/grpo",
        "qwen3-32b/gspo",
        "qwen3-8b/dapo",
        "qwen2.5-1.5b/grpo",
        "deepseek-r1/grpo",
    ):
        case = case_of(title)
        found = case.model
        assert not isinstance(found, Exception) and found is not None
        engine_of(case, found)
        assert training_of(case, found).total > 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"pp": "7"}, "94 layers over 7 pipeline stages"),
        ({"ep": "48"}, "128 experts over an expert parallel size of 48"),
        ({"tp": "6"}, "64 attention heads over a tensor parallel size of 6"),
    ],
)
def test_sizes_that_do_not_divide(sizes: dict[str, str], message: str) -> None:
    with pytest.raises(BadSizes, match=message):
        training_of(case_of("qwen3-235b/grpo", given=Given(sizes=sizes)), BIG)


def test_less_context_parallelism_needs_more() -> None:
    """The document's run goes out of memory with 2, and trains with 4 and 8."""
    by_cp = {n: training_of(case_of("qwen3-235b/grpo", given=Given(sizes={"cp": str(n)})), BIG) for n in (2, 4, 8)}
    assert by_cp[8].total < by_cp[4].total < by_cp[2].total
    assert by_cp[2].activations == pytest.approx(2 * by_cp[4].activations, rel=0.01)


ACTOR = "actor_rollout_ref.actor"


def test_hybrid_data_parallelism_has_buffers_of_its_own() -> None:
    """Rings of 2 and of 4 among 8 ranks, of 2 among 4; the recipe sets HCCL_BUFFSIZE=300."""
    assert hybrid_buffers(8, overlap=False) == 2 * 2 * 200 * MIB and hybrid_buffers(2, overlap=True) == 0
    plain, hybrid = update("qwen3-235b/grpo"), update("qwen3-235b/grpo-hdp")
    assert plain.buffers == 0 and hybrid.buffers == 2 * 300 * MIB == hybrid.total - plain.total
    second = update("qwen3-235b/grpo-hdp", megatron__override_transformer_config__use_cp_send_recv_overlap="True")
    assert second.buffers == 2 * hybrid.buffers


def test_moving_requests_has_buffers_of_its_own() -> None:
    """One communicator, with HCCL_BUFFSIZE=300 of the recipe."""
    assert moving_buffers(case_of("qwen3-235b/grpo-rebalance")) == 2 * 300 * MIB
    assert moving_buffers(case_of("qwen3-235b/grpo")) == 0


def update(title: str, **overrides: str) -> Training:
    """The update of a recipe with other values; double underscores stand for dots below the actor."""
    keys = {f"{ACTOR}.{name.replace('__', '.')}": value for name, value in overrides.items()}
    case = case_of(title, given=Given(overrides=keys))
    assert isinstance(case.model, Model)
    return training_of(case, case.model)


def test_the_host_keeps_what_the_settings_move_there() -> None:
    """dapo has no reference; grpo's is off the devices whatever the actor's states are."""
    for title, engine, references in (("qwen3-32b/dapo-fsdp2", "fsdp_config", 0), ("qwen3-235b/grpo", "megatron", 1)):

        def kept(title: str = title, engine: str = engine, **off: str) -> int:
            stays = {"megatron__override_transformer_config__swap_optimizer": "False"} if engine == "megatron" else {}
            return update(title, **stays, **{f"{engine}__{one}_offload": value for one, value in off.items()}).elsewhere

        weights = update(title).weights
        reference = weights * references  # bfloat16 in both, where there is one
        assert kept(param="False", optimizer="False") == reference
        assert kept(param="True", optimizer="False") == weights + reference
        assert kept(param="False", optimizer="True") > reference + weights


def test_fsdp_shards_over_its_own_size() -> None:
    """verl's create_device_mesh: groups of fsdp_size devices, each of which has the whole model."""
    whole, eighth = update("qwen3-32b/dapo-fsdp2"), update("qwen3-32b/dapo-fsdp2", fsdp_config__fsdp_size="8")
    assert eighth.states / GIB == pytest.approx(16 * 32_762_123_264 / 8 / GIB, abs=0.1)
    assert eighth.states == pytest.approx(8 * whole.states, rel=1e-6)
    assert eighth.elsewhere == pytest.approx(8 * whole.elsewhere, rel=1e-6)
    assert "FSDP over 8 devices" in eighth.how
    assert update("qwen3-32b/dapo-fsdp2", fsdp_config__fsdp_size="4096").states == whole.states
    with pytest.raises(BadSizes, match="64 devices over an fsdp_size of 7"):
        update("qwen3-32b/dapo-fsdp2", fsdp_config__fsdp_size="7")


def test_ulysses_divides_heads_and_divides_or_repeats_key_heads() -> None:
    """verl's apply_monkey_patch ends where it cannot: 64 heads and 8 key heads."""
    assert update("qwen3-32b/dapo-fsdp2", ulysses_sequence_parallel_size="16").total > 0
    with pytest.raises(BadSizes, match="64 attention heads and 8 key heads over a Ulysses sequence parallel size of 3"):
        update("qwen3-32b/dapo-fsdp2", ulysses_sequence_parallel_size="3")


@pytest.mark.parametrize("off", ["False", "false"])
def test_fsdp_without_checkpointing_keeps_all(off: str) -> None:
    case = case_of(
        "qwen3-32b/dapo-fsdp2",
        given=Given(overrides={"actor_rollout_ref.model.enable_gradient_checkpointing": off}),
    )
    assert isinstance(case.model, Model)
    kept = training_of(case, case.model)
    assert "nothing recomputed" in kept.how
    assert kept.activations > 2 * update("qwen3-32b/dapo-fsdp2").activations


def recomputed(method: str, layers: int) -> Training:
    return update(
        "qwen3-32b/grpo",
        megatron__override_transformer_config__recompute_granularity="full",
        megatron__override_transformer_config__recompute_method=method,
        megatron__override_transformer_config__recompute_num_layers=str(layers),
    )


def test_only_the_first_layers_of_a_block_are_recomputed() -> None:
    """Megatron's method block: the first N layers of a stage; all others keep what they have."""
    one, two, three = (recomputed("block", n) for n in (1, 2, 3))
    assert one.activations > two.activations > three.activations
    assert one.activations - two.activations == two.activations - three.activations
    assert recomputed("block", 999).activations == recomputed("uniform", 1).activations


def test_layers_that_are_recomputed_together_are_at_work_together() -> None:
    """Method uniform: one input is kept for N layers, and N layers are there while they go back."""
    alone, pair, all_of_it = (recomputed("uniform", n) for n in (1, 2, 999))
    assert alone.activations < pair.activations < all_of_it.activations


@pytest.mark.parametrize(("value", "recomputes"), [("level0", True), ("level1", True), ("disable", False)])
def test_moe_zero_memory_can_be_disabled(value: str, recomputes: bool) -> None:
    found = update("qwen3-235b/grpo", megatron__override_transformer_config__moe_zero_memory=value)
    assert ("MoE layers recomputed" in found.how) == recomputes
    assert ("nothing recomputed" in found.how) != recomputes
