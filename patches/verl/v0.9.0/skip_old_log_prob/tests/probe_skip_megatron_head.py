"""Probe: the head of verl's Megatron engine, with an entropy that the loss reads, one that is only a figure, and none.

Usage: probe_skip_megatron_head.py CASE...   (a JSON list: calculate_entropy, entropy_requires_grad or null, entropy_from_logits_with_chunking)

Real: MegatronEngineWithLMHead's logits processor and Megatron-LM's losses, on one rank of gloo. Prints for each case the entropy, the
log-probabilities, their gradient by the logits, and how many tensors as wide as the vocabulary autograd kept.
"""

import json
import sys
from types import SimpleNamespace

import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead

TOKENS, VOCABULARY = 6, tiny_megatron.VOCABULARY


def head(calculate_entropy, requires_grad, chunking):
    torch.manual_seed(0)
    scores = torch.randn(1, TOKENS, VOCABULARY, requires_grad=True)
    engine = SimpleNamespace(
        engine_config=SimpleNamespace(entropy_from_logits_with_chunking=chunking, entropy_from_logits_chunk_size=4)
    )
    batch, kept = TensorDict({}, batch_size=1), set()
    if requires_grad is not None:
        tu.assign_non_tensor(batch, entropy_requires_grad=requires_grad)

    def keep(tensor):
        if tensor.shape[-1:] == (VOCABULARY,):
            kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        made = MegatronEngineWithLMHead._lm_head_logits_processor(
            engine,
            scores * 2,
            torch.arange(TOKENS)[None],
            torch.ones(1, TOKENS),
            calculate_sum_pi_squared=False,
            calculate_entropy=calculate_entropy,
            distillation_use_topk=False,
            distillation_only=False,
            logits_processor_func=None,
            batch=batch,
            data_format="thd",
        )
    made["log_probs"].sum().backward()
    entropy = made.get("entropy")
    return {
        "log_probs": made["log_probs"].tolist(),
        "gradient": scores.grad.flatten().tolist(),
        "entropy": None if entropy is None else entropy.flatten().tolist(),
        "differentiable": entropy is not None and entropy.requires_grad,
        "kept": len(kept),
    }


if __name__ == "__main__":
    tiny_megatron.initialise()
    print(json.dumps([head(*json.loads(case)) for case in sys.argv[1:]]))
