# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Test what EngineCore schedules while it is asleep and as it wakes up."""

import pytest

from tests.v1.core.utils import create_requests, create_scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor


class DummyExecutor(Executor):
    """Tracks which parts are asleep, without any workers."""

    def __init__(self):
        self.is_sleeping = False
        self.sleeping_tags: set[str] = set()

    def _init_executor(self):
        pass

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, **_):
        return []

    def check_health(self):
        pass


@pytest.fixture
def engine_core() -> EngineCore:
    engine_core = EngineCore.__new__(EngineCore)
    engine_core.scheduler = create_scheduler(skip_tokenizer_init=True)
    engine_core.model_executor = DummyExecutor()
    engine_core.mm_receiver_cache = None
    return engine_core


def sleep_with_new_request(engine_core: EngineCore, level: int) -> None:
    """Put the engine to sleep; a request arrives before it wakes up."""
    engine_core.sleep(level=level)
    (request,) = create_requests(num_requests=1)
    engine_core.scheduler.add_request(request)
    assert num_scheduled_tokens(engine_core) == 0
    assert engine_core.is_sleeping()


def num_scheduled_tokens(engine_core: EngineCore) -> int:
    return engine_core.scheduler.schedule().total_num_scheduled_tokens


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    "calls",
    [
        [["weights"], ["kv_cache"]],
        [["kv_cache"], ["weights"]],
        [["weights"], ["weights"], ["kv_cache"]],
        [["scheduling"], ["scheduling", "kv_cache"], ["weights"]],
        [["scheduling"], None],
    ],
)
def test_nothing_is_scheduled_until_all_parts_are_awake(engine_core, level, calls):
    sleep_with_new_request(engine_core, level)
    *partial_calls, last_call = calls
    for tags in partial_calls:
        engine_core.wake_up(tags)
        assert engine_core.is_sleeping()
        assert num_scheduled_tokens(engine_core) == 0
    engine_core.wake_up(last_call)
    assert not engine_core.is_sleeping()
    assert num_scheduled_tokens(engine_core) > 0


@pytest.mark.parametrize(
    "level, tags",
    [
        (0, ["scheduling"]),
        (0, None),
        (1, None),
        (1, ["weights", "kv_cache"]),
        (2, ["scheduling", "weights", "kv_cache"]),
    ],
)
def test_scheduling_is_resumed_when_all_parts_wake_up_at_once(engine_core, level, tags):
    sleep_with_new_request(engine_core, level)
    engine_core.wake_up(tags)
    assert not engine_core.is_sleeping()
    assert num_scheduled_tokens(engine_core) > 0
