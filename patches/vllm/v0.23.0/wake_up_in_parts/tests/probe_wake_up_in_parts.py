"""Probe: whether an engine computes while a part of it is asleep, and what becomes of the requests that came meanwhile.

Usage: probe_wake_up_in_parts.py MODEL

Prints by case: how often the model ran while anything was asleep; whether the engine said that it sleeps, after each call of wake_up; and
whether its answers are those that it gave before.
"""

import json
import os
import sys

import npu_engine
import npu_engine_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine_0_23.prepare()

import torch.distributed as dist  # noqa: E402  (what imports vllm comes after the preparation)
from vllm import SamplingParams  # noqa: E402
from vllm_ascend.worker import worker as workers  # noqa: E402

MODEL = sys.argv[1]
PROMPTS, LENGTH, STEPS = [[10, 11, 12, 13, 14], [20, 21, 22]], 6, 4
ALONE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {name: os.environ.get(name, value) for name, value in ALONE.items()}
PARTS = {"weights", "kv_cache"}
# By case: the level of sleep, and what wakes up in which call; None wakes everything.
CASES = {
    "weights first": (1, [["weights"], ["kv_cache"]]),
    "cache first": (1, [["kv_cache"], ["weights"]]),
    "scheduling first": (1, [["scheduling"], None]),
    "a part that sleeps no more": (1, [["weights"], ["weights"], ["kv_cache"]]),
    "at once": (1, [None]),
    "both named": (1, [["weights", "kv_cache"]]),
    "level 0": (0, [["scheduling"]]),
}


class Pool(npu_engine.MemoryPool):
    """Knows what of its memory sleeps."""

    asleep = frozenset()

    def sleep(self, offload_tags):
        Pool.asleep = PARTS

    def wake_up(self, tags):
        Pool.asleep = Pool.asleep - set(tags or PARTS)


class Engine:
    def __init__(self):
        self.llm = npu_engine.small_llm(MODEL, enable_sleep_mode=True)
        self.engine = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.ran_asleep = 0
        model = self.engine.model_executor.driver_worker.worker.model_runner.get_model()
        model.register_forward_pre_hook(self.note)

    def note(self, *args):
        self.ran_asleep += bool(Pool.asleep)

    def ask(self, case):
        params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
        for number, prompt in enumerate(PROMPTS):
            self.engine.add_request(f"{case} {number}", {"prompt_token_ids": prompt}, params)

    def answers(self):
        """The rest of the answers."""
        given = {}
        for _ in range(10 * LENGTH):  # an engine that is never resumed would be stepped for ever
            given |= {one.request_id: list(one.outputs[0].token_ids) for one in self.engine.step() if one.finished}
        return [given[name] for name in sorted(given)]

    def case(self, name, before):
        level, calls = CASES[name]
        self.ran_asleep = 0
        self.llm.sleep(level=level)
        self.ask(name)
        sleeping = []
        for tags in calls:
            self.llm.wake_up(tags=tags)
            sleeping.append(self.core.is_sleeping())
            for _ in range(STEPS if Pool.asleep else 0):
                self.engine.step()
        return {"ran asleep": self.ran_asleep, "sleeping": sleeping, "answers": self.answers() == before}


def main():
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    engine = Engine()
    engine.ask("before")
    before = engine.answers()
    print(json.dumps({"before": [len(one) for one in before], **{name: engine.case(name, before) for name in CASES}}))
    dist.destroy_process_group()


workers.CaMemAllocator = Pool
main()
