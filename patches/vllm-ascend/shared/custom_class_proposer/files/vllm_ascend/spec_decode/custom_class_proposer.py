# SPDX-License-Identifier: Apache-2.0
"""A proposer of the user's own on an NPU: vllm's speculative method `custom_class`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner


class AscendCustomClassProposer:
    """Asks the object that GPUModelRunner has made of the class which speculative_config's `model` names.

    As in vllm, `propose` is all that the class must have, and its `load_model` is called where it has one. One that
    has `set_runner` is given the model runner, which knows whose tokens a row of the batch holds.
    """

    def __init__(self, proposer: Any, runner: NPUModelRunner):
        self.proposer = proposer
        self.runner = runner
        self.num_drafts = runner.speculative_config.num_speculative_tokens
        if hasattr(proposer, "set_runner"):
            proposer.set_runner(runner)

    def load_model(self, model: Any) -> None:
        if hasattr(self.proposer, "load_model"):
            self.proposer.load_model(model)

    def dummy_run(self, *args, **kwargs) -> None:
        # vllm runs no model of a custom class in a dummy step.
        pass

    def propose(self, sampled_token_ids: list[list[int]]) -> list[list[int]]:
        """Drafts for each row of the batch. Slot mappings are not handed on.

        Raises:
            ValueError: the class gives other rows than the batch has, or more drafts than a step verifies.
        """
        batch = self.runner.input_batch
        drafts = self.proposer.propose(
            sampled_token_ids, batch.num_tokens_no_spec, batch.token_ids_cpu, slot_mappings=None
        )
        if len(drafts) != len(sampled_token_ids) or any(len(one) > self.num_drafts for one in drafts):
            raise ValueError(
                f"{type(self.proposer).__name__}.propose must return {len(sampled_token_ids)} lists of at most "
                f"num_speculative_tokens ({self.num_drafts}) tokens, not {drafts!r}"
            )
        return drafts
