"""moe_update_weights: expert weights of vllm-ascend after an update, in vLLMRollout on a real engine.

The expert layer is vllm-ascend's own; the NPU's operators are reference implementations (test_moe_standins.py), and so
is sleep mode's memory pool, whose contents stay. w13 of the square model has as many rows as columns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

STANDINS = ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"]
NPU: dict[str, Any] = {"need": ["verl", "vllm-ascend", "vllm"], "standins": STANDINS, "timeout": 400}
ON = ["square,float32,free,on", "oblong,bfloat16,keep,on"]
OFF = ["square,float32,free,off", "oblong,float32,free,off", "oblong,float32,keep,off"]
SHARED = "oblong,float32,free,on"
STEPS = ["before", "first", "second"]


@pytest.fixture(scope="module")
def environment(
    upstream: Upstream, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models") / "oblong"
    made = upstream.run("probe_moe_update_model.py", tiny_models.qwen3_moe, folder)
    assert made == [96, 64]
    models = {"MODEL_square": str(tiny_models.qwen3_moe), "MODEL_oblong": str(folder)}
    return models | {"VLLM_ASCEND_ENABLE_NZ": "0"}  # with another one the engine refuses to wake up


@pytest.fixture(scope="module")
def updated(upstream: Upstream, environment: dict[str, str]) -> Any:
    return upstream.run("probe_moe_update.py", *ON, env=environment, **NPU)


@pytest.fixture(scope="module")
def misuse(upstream: Upstream, tiny_models: TinyModels) -> Any:
    probe = "probe_moe_update_misuse.py"
    return upstream.run(probe, tiny_models.qwen3, tiny_models.qwen3_moe, **NPU)


def check_steps(out: Any, fresh: Any) -> None:
    """Each update changes the tokens, and in the end they are those of a fresh engine."""
    assert "error" not in out
    assert len({str(out[step]) for step in STEPS}) == len(STEPS)
    assert out["second"] == fresh
    assert out["second again"] == out["second"]
    assert out["slept"] == out["second"]


@pytest.mark.on
@pytest.mark.parametrize("case", ON)
def test_tokens_equal_a_fresh_engine_after_each_update(updated: Any, case: str) -> None:
    check_steps(updated[case], updated[case]["fresh"])


@pytest.mark.on
def test_tokens_equal_hf_after_each_update(updated: Any) -> None:
    out = updated["square,float32,free,on"]
    assert {step: out[step] for step in out["hf"]} == out["hf"]


@pytest.mark.on
@pytest.mark.parametrize("case", ON)
def test_weights_stay_where_they_are(updated: Any, case: str) -> None:
    """In sleep mode's pool, and where captured graphs read them."""
    assert updated[case]["same memory"] is True


@pytest.mark.on
@pytest.mark.slow
def test_data_parallel_engines_that_share_the_experts(upstream: Upstream, environment: dict[str, str]) -> None:
    ranks = upstream.run("probe_moe_update.py", SHARED, procs=2, env=environment, **NPU)
    for out in (rank[SHARED] for rank in ranks):
        check_steps(out, out["fresh"])
        assert {step: out[step] for step in out["hf"]} == out["hf"]
        assert out["experts"] == [2, 2, 2, 2]
        assert out["same groups"] is True


@pytest.mark.on
@pytest.mark.slow
def test_only_without_it_the_first_update_breaks_the_engine(
    upstream: Upstream, environment: dict[str, str], updated: Any
) -> None:
    """Switched off: after wake_up weights fit the loaders and stay so; without sleep mode they fit the kernels only.

    Not an `off` test: unpatched verl does not import with this vllm (vllm_import_compat), so what upstream's own lines
    do to expert weights can be seen on a patched tree only.
    """
    assert [case for case in ON if "error" in updated[case]] == []
    out = upstream.run("probe_moe_update.py", *OFF, env=environment, **NPU)
    errors = [out[case]["error"] for case in OFF]
    assert "npu_grouped_matmul" in errors[0]
    assert "npu_grouped_matmul" in errors[1]
    assert "must match the size of tensor" in errors[2]


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("asynchronous", "rollout.mode=sync, not vllm with async: set it to False"),
        ("sglang", "rollout.mode=sync, not sglang with sync: set it to False"),
        ("NZ and free_cache_engine", "VLLM_ASCEND_ENABLE_NZ=0, and it is 1"),
        ("NZ for all weights", "set VLLM_ASCEND_ENABLE_NZ to 0 or 1"),
        ("dense", "Qwen3ForCausalLM has no experts: set it to False"),
        ("quantised", "kept by AscendW8A8DynamicFusedMoEMethod"),
        ("latent attention", "layers.1.self_attn.attn of Qwen3MoeForCausalLM"),
        ("another layout", "neither as vllm-ascend's kernels read it nor as its weight loaders write it"),
    ],
)
def test_what_cannot_be_updated_is_refused(misuse: Any, case: str, said: str) -> None:
    assert misuse[case].startswith("rollout.moe_update_weights")
    assert said in misuse[case]


@pytest.mark.misuse
@pytest.mark.parametrize("case", ["NZ for quantised weights only", "NZ for all weights, in float32", "no NZ"])
def test_weights_that_are_not_in_nz_are_accepted(misuse: Any, case: str) -> None:
    assert misuse[case] is None


@pytest.mark.misuse
def test_refused_without_vllm_ascend(upstream: Upstream) -> None:
    out = upstream.run("probe_moe_update_misuse.py", need=["verl"])
    assert "is for vllm-ascend, which is not installed" in out["no vllm-ascend"]


@pytest.mark.off
def test_off_by_default(upstream: Upstream) -> None:
    out = upstream.run("probe_moe_update_off.py", need=["verl"])
    assert out == {
        "kept": ["vllm", "model", "mesh"],
        "parameters": ["self", "config", "model_config", "device_mesh"],
        "updated": [1, 2],
        "switch": False,
        "imported": [],
    }


@pytest.mark.off
def test_declared_as_off(upstream: Upstream) -> None:
    """In each file that has `load_format`, when it is declared at all."""
    config = Path(upstream.tree("verl"), "verl/trainer/config")
    for name in ("rollout/rollout.yaml", "_generated_ppo_trainer.yaml", "_generated_ppo_megatron_trainer.yaml"):
        lines = [line.strip().lower() for line in config.joinpath(name).read_text(encoding="utf-8").splitlines()]
        assert lines.count("load_format: dummy") == 1
        assert [line for line in lines if line.startswith("moe_update_weights:")] in ([], ["moe_update_weights: false"])
