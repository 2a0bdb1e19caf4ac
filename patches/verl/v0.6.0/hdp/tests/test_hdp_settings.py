"""hybrid_data_parallel switched off, and with what it does not go: refused at the start, with what to set instead."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from hdp_runs import WHERE


@pytest.fixture(scope="module")
def off(upstream: Upstream) -> dict[str, Any]:
    where = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu"]}
    return dict(upstream.run("probe_hdp_off.py", **where))


@pytest.mark.off
def test_without_the_switch_and_mindspeed_a_batch_is_cut_as_upstream_does(off: dict[str, Any]) -> None:
    assert off["indices"] == [[0, 2, 6], [1, 3, 4, 5, 7]]
    assert off["keys"] == ["attention_mask", "input_ids"]


@pytest.mark.off
def test_without_the_switch_and_mindspeed_all_workers_are_made(off: dict[str, Any]) -> None:
    names = ["actor_rollout", "ref", "critic", "reward model", "MegatronEngine"]
    assert off["workers"] == {name: [0, True] for name in names}


@pytest.mark.off
def test_without_the_switch_nothing_of_it_is_imported(off: dict[str, Any]) -> None:
    assert off["mindspeed"] == []
    assert not off["packing"], "the packing is imported although it is switched off"


@pytest.mark.misuse
def test_without_mindspeed_the_switch_is_refused(off: dict[str, Any]) -> None:
    assert off["refused"]["off"] is None
    assert "needs MindSpeed" in off["refused"]["on"]


@pytest.fixture(scope="module")
def refusals(upstream: Upstream) -> dict[str, dict[str, str | None]]:
    return dict(upstream.run("probe_hdp_refusals.py", **WHERE))


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("configurations", "one rank", "context_parallel_size of 2 or more"),
        ("configurations", "MindSpeed left as it was", "override_transformer_config.context_parallel_size=2"),
        ("configurations", "fused kernels", "use_fused_kernels=False"),
        ("configurations", "by time without it", "hybrid_data_parallel_by_time=True needs"),
        ("configurations", "by time with rows", "actor_rollout_ref.actor.use_dynamic_bsz=True"),
        ("configurations", "costs without it", "hybrid_data_parallel_costs need"),
        ("configurations", "costs", "hybrid_data_parallel_costs.quadratic_length=0 is no number above 0"),
        ("configurations", "no such cost", "there are quadratic_length, ring_share, ring_step"),
        ("configurations", "reference alone", "actor.megatron.hybrid_data_parallel=True"),
        ("configurations", "reference on one rank", "actor_rollout_ref.ref.megatron.context_parallel_size=2"),
        ("models", "attention", "attention PackedAttention, which takes no ranks"),
        ("models", "latent attention", "multi_latent_attention"),
        ("models", "multi-token prediction", "mtp_num_layers"),
        ("models", "fixed lengths", "variable_seq_lengths"),
        ("models", "allgather", "set alltoall"),
        ("models", "auxiliary loss", "moe_aux_loss_coeff"),
        ("models", "z loss", "moe_z_loss_coeff"),
        ("models", "capacity", "moe_expert_capacity_factor"),
        ("mindspeed", "algorithm", "only megatron_cp_algo does"),
        ("mindspeed", "mask", "only causal does"),
        ("mindspeed", "reset", "reset_attention_mask=True"),
        ("mindspeed", "2d", "tp_2d=True"),
    ],
)
def test_what_it_does_not_go_with_is_refused(
    refusals: dict[str, dict[str, str | None]], kind: str, name: str, words: str
) -> None:
    message = refusals[kind][name]
    assert message is not None and words in message, message


@pytest.mark.misuse
def test_what_it_goes_with_is_not_refused(refusals: dict[str, dict[str, str | None]]) -> None:
    assert refusals["configurations"]["accepted"] is None
    assert refusals["configurations"]["by time accepted"] is None
    assert refusals["configurations"]["costs accepted"] is None
    assert refusals["configurations"]["reference that is plain"] is None
    assert refusals["mindspeed"]["accepted"] is None
