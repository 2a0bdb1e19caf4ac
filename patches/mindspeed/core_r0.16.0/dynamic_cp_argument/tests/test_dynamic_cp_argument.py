"""dynamic_cp_argument: Megatron-LM's dynamic_context_parallel comes through MindSpeed, which says what does not go with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream

# What MindSpeed is told, and what the message has to name.
MISUSE: dict[str, tuple[dict[str, Any], str]] = {
    "algorithm": (
        {"context_parallel_algo": "hybrid_cp_algo", "ulysses_degree_in_cp": 1},
        "context_parallel_algo=hybrid_cp_algo",
    ),
    "gathered keys": ({"context_parallel_algo": "kvallgather_cp_algo"}, "context_parallel_algo=kvallgather_cp_algo"),
    "mask": ({"attention_mask_type": "general"}, "attention_mask_type=general"),
    "window": ({"cp_window_size": 2}, "cp_window_size=2"),
    "fused rotary operator": ({"apply_rope_fusion": True}, "apply_rope_fusion=True"),
    "second group": ({"use_cp_send_recv_overlap": True}, "use_cp_send_recv_overlap=True"),
}


@pytest.fixture(scope="module")
def made(upstream: Upstream) -> Any:
    cases = {"on": {}, "off": {}, "off, overlapped": {"use_cp_send_recv_overlap": True}}
    cases |= {name: settings for name, (settings, _) in MISUSE.items()}
    where = {"need": ["megatron-lm", "mindspeed"], "standins": ["torch_npu", "megatron_cpu"]}
    return upstream.run("probe_dynamic_cp_argument.py", json.dumps(cases), procs=2, timeout=240, **where)


@pytest.mark.on
def test_groups_are_made_with_mindspeeds_context_parallelism(made: Any) -> None:
    for rank, found in enumerate(made):
        assert found["on"] == {"wrapped": "model_parallel_utils", "context": 2, "1": [rank], "2": [0, 1]}


@pytest.mark.off
@pytest.mark.parametrize("case", ["off", "off, overlapped"])
def test_context_parallelism_without_it(made: Any, case: str) -> None:
    for found in made:
        assert found[case]["context"] == 2


@pytest.mark.misuse
@pytest.mark.parametrize("case", MISUSE)
def test_what_does_not_go_with_it_is_named_before_a_group_is_made(made: Any, case: str) -> None:
    for found in made:
        assert found[case]["error"].startswith("NotImplementedError: "), found[case]
        assert MISUSE[case][1] in found[case]["error"]
        assert found[case]["made"] is False
