"""Log-probabilities of verl's Megatron actor on a CPU beside Hugging Face's. Import `grouped_worker` before it."""

import grouped_worker as gw
import npu_attention
import torch
import torch_npu
from transformers import AutoModelForCausalLM
from verl import DataProto

PROMPT, RESPONSE = 6, 5


def use_reference_operators():
    npu_attention.install()
    gw.use_reference_grouped_gemm()
    torch_npu.npu_rms_norm = lambda x, weight, epsilon=1e-6: (
        torch.nn.functional.rms_norm(x.float(), weight.shape, weight.float(), epsilon).to(x.dtype),
        None,
    )


def log_probs(worker, folder):
    """[the largest difference of the worker's log-probabilities from Hugging Face's, largest - smallest of those]."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 96, (4, PROMPT + RESPONSE), generator=generator)
    mask = torch.ones_like(tokens)
    mask[0, :3], mask[1, -2:] = 0, 0  # a short prompt, a short answer
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    batch = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
    batch |= {"responses": tokens[:, PROMPT:], "response_mask": mask[:, PROMPT:]}
    found = worker.compute_log_prob(DataProto.from_dict(batch)).batch["old_log_probs"]
    original = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = original(input_ids=tokens, attention_mask=mask, position_ids=positions).logits[:, PROMPT - 1 : -1]
    expected = logits.log_softmax(-1).gather(-1, tokens[:, PROMPT:, None])[..., 0]
    answered = mask[:, PROMPT:].bool()
    expected = expected[answered]
    return [float((found[answered] - expected).abs().max()), float(expected.max() - expected.min())]
