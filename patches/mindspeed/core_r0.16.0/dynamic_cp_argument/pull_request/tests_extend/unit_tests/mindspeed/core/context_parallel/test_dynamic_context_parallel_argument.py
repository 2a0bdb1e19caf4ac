# Copyright (c) 2026, Huawei Technologies Co., Ltd.  All rights reserved.
from types import SimpleNamespace

import pytest
import torch_npu  # noqa: F401

from mindspeed.core.context_parallel import model_parallel_utils

# What goes with it.
SETTINGS = {
    "context_parallel_size": 2,
    "context_parallel_algo": "megatron_cp_algo",
    "attention_mask_type": "causal",
    "cp_window_size": 1,
    "apply_rope_fusion": False,
    "use_cp_send_recv_overlap": False,
}


@pytest.fixture
def initialize(monkeypatch):
    """The wrapped function of Megatron-LM, which only takes notes: a list of (tensor parallel size, context parallel
    size, whether there are to be groups for dynamic context parallelism).
    """
    calls = []

    def make(**settings):
        monkeypatch.setattr(model_parallel_utils, "get_args", lambda: SimpleNamespace(**{**SETTINGS, **settings}))
        # Groups of MindSpeed's own are not made.
        for name in ("send_recv_overlap", "hybrid_cp", "double_ring"):
            monkeypatch.setattr(
                model_parallel_utils, f"initialize_context_parallel_group_for_{name}", lambda *args: None
            )

        def initialize_model_parallel(*args, dynamic_context_parallel=None):
            calls.append((args[0], args[5], dynamic_context_parallel))

        return model_parallel_utils.initialize_model_parallel_cp_wrapper(initialize_model_parallel), calls

    return make


@pytest.mark.parametrize("dynamic_context_parallel", [True, False])
def test_argument_comes_through(initialize, dynamic_context_parallel):
    initialize_model_parallel, calls = initialize()
    initialize_model_parallel(4, context_parallel_size=2, dynamic_context_parallel=dynamic_context_parallel)
    assert calls == [(4, 2, dynamic_context_parallel)]


def test_nothing_is_handed_on_that_was_not_given(initialize):
    initialize_model_parallel, calls = initialize()
    initialize_model_parallel(tensor_model_parallel_size=4, context_parallel_size=2)
    assert calls == [(4, 2, None)]


def test_unknown_argument_is_refused(initialize):
    initialize_model_parallel, calls = initialize()
    with pytest.raises(TypeError, match="dynamic_context_paralel"):
        initialize_model_parallel(context_parallel_size=2, dynamic_context_paralel=True)
    assert not calls


UNSUITABLE = [
    ("context_parallel_algo", "hybrid_cp_algo"),
    ("context_parallel_algo", "ulysses_cp_algo"),
    ("context_parallel_algo", "kvallgather_cp_algo"),
    ("attention_mask_type", "general"),
    ("cp_window_size", 2),
    ("apply_rope_fusion", True),
    ("use_cp_send_recv_overlap", True),
]


@pytest.mark.parametrize("name, value", UNSUITABLE)
def test_unsuitable_setting_is_named_before_any_group_is_made(initialize, name, value):
    initialize_model_parallel, calls = initialize(**{name: value})
    with pytest.raises(NotImplementedError, match=f"{name}={value}"):
        initialize_model_parallel(context_parallel_size=2, dynamic_context_parallel=True)
    assert not calls


@pytest.mark.parametrize("name, value", UNSUITABLE)
@pytest.mark.parametrize("arguments", [{}, {"dynamic_context_parallel": False}])
def test_setting_is_free_without_it(initialize, name, value, arguments):
    initialize_model_parallel, calls = initialize(**{name: value})
    initialize_model_parallel(context_parallel_size=2, **arguments)
    assert len(calls) == 1
