# SPDX-License-Identifier: Apache-2.0
"""SamProposer with additional_config's sam_shared_history: drafts from ended requests too, see `suffix_shared`.

Ended requests are taken where the runner is told of them, and not where it asks for drafts: with spec_batch_threshold
most of a rollout ends while it does not ask. The last ones of a rollout are told of in the first step of the next.
"""

from __future__ import annotations

from vllm.logger import logger

from vllm_ascend.ascend_config import get_sam_shared_history
from vllm_ascend.spec_decode.sam_proposer import SamProposer
from vllm_ascend.spec_decode.suffix_shared import NO_ADAPTER, NOT_SHARED, SharedHistory


class SharedSamProposer(SamProposer):
    """SamProposer, and one history of ended requests for all that run. SamProposer makes it where the setting is.

    Raises:
        ValueError: as SamProposer, and where sam_shared_history is not what `get_sam_shared_history` takes.
    """

    def __init__(self, vllm_config):
        super().__init__(vllm_config)
        megabytes, updates = get_sam_shared_history(vllm_config)
        self.shared = SharedHistory(self.pool, megabytes << 20, updates)
        self.shared.warm_up()

    def set_runner(self, runner) -> None:
        """Hears of requests that end, before the runner forgets them, and of updates of a LoRA adapter."""
        super().set_runner(runner)
        runner.add_lora = self._tells_first(runner.add_lora)
        update_states = runner._update_states

        def told(scheduler_output):
            self.take_ended(scheduler_output.finished_req_ids)
            return update_states(scheduler_output)

        runner._update_states = told

    def load_model(self, model) -> None:
        """Hears of weight updates: for each verl, and vllm's own transfer, call the model's own load_weights."""
        model.load_weights = self._tells_first(model.load_weights)

    def _tells_first(self, update):
        def told(*args, **kwargs):
            self.shared.weights_updated()
            return update(*args, **kwargs)

        return told

    def take_ended(self, ended: set[str]) -> None:
        """Adds those of the runner's requests that have ended, before it forgets them.

        In the runner's order: that of a set of names is another one on each rank, and ranks must draft the same.
        """
        if not ended:
            return
        for req_id, request in self.runner.requests.items():
            adapter = _adapter_of(request)
            if req_id not in ended or adapter == NOT_SHARED:
                continue
            if not self.shared.add([*request.prompt_token_ids, *request.output_token_ids], adapter):
                logger.warning_once(
                    "Ended requests are not drafted from: there is no room for them. Raise max_memory_mb of "
                    "additional_config's sam_shared_history."
                )

    def _follow(self, request):
        followed = super()._follow(request)
        self.shared.open(followed.slot, _adapter_of(request))
        return followed

    def _propose(self, histories, limits):
        found = super()._propose(histories, limits)
        self.shared.improve(*histories, limits, self._known, found)
        return found


def _adapter_of(request) -> int:
    """Whose history a request shares: its LoRA adapter's. With images, or with embeddings in a part of the prompt, equal
    tokens can stand for different ones."""
    if request.mm_features or request.prompt_token_ids is None or request.prompt_embeds is not None:
        return NOT_SHARED
    return request.lora_request.lora_int_id if request.lora_request else NO_ADAPTER
