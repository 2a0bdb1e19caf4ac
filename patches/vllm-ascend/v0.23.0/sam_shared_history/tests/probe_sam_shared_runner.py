"""Probe: what probe_sam_shared_history.py says of this stack's SharedSamProposer, without an engine.

That probe is of the interface of older stacks. Its runner gets what this stack's proposer reads beside: embeddings of requests, and the
method that the runner updates its states with, through which requests end here.
"""

import io
import json
from contextlib import redirect_stdout
from types import SimpleNamespace

import npu_engine
import npu_engine_0_23

npu_engine_0_23.prepare()
npu_engine.prepare = lambda *args, **kwargs: None  # has been done

from vllm_ascend.ascend_config import SAM_PROPOSER  # noqa: E402
from vllm_ascend.spec_decode import sam_proposer, sam_shared_proposer  # noqa: E402

SharedSamProposer = sam_shared_proposer.SharedSamProposer
RENAMED = {
    "sam_min_match_length": "min_match_length",
    "sam_max_drafts_per_match": "max_drafts_per_match",
    "sam_share_in_group": "share_in_group",
    "sam_max_memory_mb": "max_memory_mb",
}


class Earlier(SharedSamProposer):
    """Is made and called as in older stacks."""

    def __new__(cls, config, device, runner):
        return super().__new__(cls, here(config))

    def __init__(self, config, device, runner):
        super().__init__(config)
        self.ended = []
        runner._update_states = lambda output: self.ended.append(output.finished_req_ids)
        self.set_runner(runner)

    def take_ended(self, ended):
        """The other probe tells of requests that end here: the runner is told of them instead."""
        whole(self.runner.requests.values())
        if self.ended:  # inside of what the runner is told
            super().take_ended(ended)
            return
        self.ended.append(None)
        self.runner._update_states(SimpleNamespace(finished_req_ids=ended))
        assert self.ended == [None, ended]  # and then it updates its states
        self.ended.clear()

    def generate_token_ids(self, sampled):
        whole(self.runner.requests.values())
        batch = self.runner.input_batch
        return self.propose(sampled, batch.num_tokens_no_spec, batch.token_ids_cpu)


def here(config):
    """This stack's settings of an older configuration."""
    speculative = config.speculative_config
    settings = {new: getattr(speculative, old) for old, new in RENAMED.items()}
    config.additional_config = {**config.additional_config, "sam_config": settings}
    speculative.model = SAM_PROPOSER
    return config


def whole(requests):
    for one in requests:
        vars(one).setdefault("prompt_embeds", None)


def embeddings(probe):
    """A prompt of tokens and embeddings, beside one of tokens: bytes that the first leaves, and drafts of both kinds."""
    made = probe.proposer()
    requests = made.runner.requests

    def with_embeddings(prompt):
        one = probe.request(prompt)
        one.prompt_embeds = [0.5]
        return one

    requests["a"] = with_embeddings([5, 6, 7])
    probe.end(made, "a")
    left = made.shared.used_bytes()
    requests["b"] = probe.request([5, 6, 7])
    probe.end(made, "b")
    requests |= {"c": with_embeddings([5]), "d": probe.request([5])}
    return {"bytes": left, "drafts": probe.drafts_of(made)}


def kinds():
    """What the class that vllm is given makes, with the setting and without."""
    made = {}
    for name, setting in {"with": {"max_memory_mb": 4, "updates": 1}, "without": None}.items():
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=3, model=SAM_PROPOSER),
            model_config=SimpleNamespace(max_model_len=96),
            scheduler_config=SimpleNamespace(max_num_seqs=3),
            additional_config={"sam_shared_history": setting},
        )
        one = sam_proposer.SamProposer(config)
        made[name] = [type(one).__name__, type(one.pool).__name__]
    return made


sam_shared_proposer.SharedSamProposer = Earlier
printed = io.StringIO()
with redirect_stdout(printed):
    import probe_sam_shared_history as probe
seen = json.loads(printed.getvalue().splitlines()[-1]) | {"embeddings": embeddings(probe)}
sam_shared_proposer.SharedSamProposer = SharedSamProposer
print(json.dumps(seen | {"kinds": kinds()}))
