# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Test which seed the ranks of a data parallel engine are started with."""

from types import SimpleNamespace

import pytest

from vllm.v1.engine import core


class Started(Exception):
    """Raised in place of starting an engine core, with its seed."""


def start(vllm_config, **kwargs):
    raise Started(vllm_config.model_config.seed)


def config(seed: int, data_parallel_size: int, is_moe: bool) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(seed=seed, is_moe=is_moe),
        parallel_config=SimpleNamespace(
            data_parallel_size=data_parallel_size, numa_bind=False
        ),
        kv_transfer_config=None,
    )


def seed_of_process(monkeypatch, vllm_config, dp_rank: int) -> int:
    for name in ("set_process_title", "maybe_init_worker_tracer", "decorate_logs"):
        monkeypatch.setattr(core, name, lambda *args: None)
    run_engine_core = core.EngineCoreProc.run_engine_core
    monkeypatch.setattr(core, "EngineCoreProc", start)
    monkeypatch.setattr(core, "DPEngineCoreProc", start)
    with pytest.raises(Started) as started:
        run_engine_core(vllm_config=vllm_config, dp_rank=dp_rank)
    return started.value.args[0]


@pytest.mark.parametrize("is_moe", [False, True])
def test_processes_have_seeds_of_their_own(monkeypatch, is_moe):
    seeds = []
    for dp_rank in range(4):
        with monkeypatch.context() as patch:
            vllm_config = config(42, 4, is_moe)
            seeds.append(seed_of_process(patch, vllm_config, dp_rank))
    assert seeds[0] == 42
    assert len(set(seeds)) == 4
    # Not the seeds of other engines, where each is given one of its own.
    assert not {*range(42, 1024)} & {*seeds[1:]}


def test_one_rank_has_the_seed_of_the_engine(monkeypatch):
    assert seed_of_process(monkeypatch, config(42, 1, False), 0) == 42


def test_ray_actors_have_seeds_of_their_own(monkeypatch):
    class Actor(core.EngineCoreActorMixin):
        def _set_visible_devices(self, vllm_config, local_dp_rank):
            pass

        def _set_nixl_side_channel_host(self):
            pass

    monkeypatch.setattr(core, "maybe_init_worker_tracer", lambda **kwargs: None)
    seeds = []
    for dp_rank in range(4):
        vllm_config = config(2**32 - 1, 4, True)
        Actor(vllm_config, None, dp_rank)
        seeds.append(vllm_config.model_config.seed)
    assert seeds[0] == 2**32 - 1
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**32 for seed in seeds)
