"""What the rollout probes share: configuration as verl's trainer composes it, and two prompts."""

import os

PROMPT_LENGTH = 40  # the chat template's text, which vllm's server warms up with, must fit
RESPONSE_LENGTH = 8
EOS = 2
PROMPTS = [[10, 11, 12, 13, 14, 10, 11, 12], [20, 21, 22, 23, 24, 25]]
SETTINGS = {
    "name": "vllm",
    "dtype": "float32",
    "enforce_eager": True,
    "free_cache_engine": True,
    "prompt_length": PROMPT_LENGTH,
    "response_length": RESPONSE_LENGTH,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 8,
    "tensor_model_parallel_size": 1,
    "load_format": "auto",
    "enable_prefix_caching": False,
    "calculate_log_probs": True,
    "temperature": 0,
}


def compose_config(model, trainer="ppo_trainer", **settings):
    """The configuration of verl's `trainer` with SETTINGS, `settings` of the rollout and the model's path."""
    import verl
    from hydra import compose, initialize_config_dir

    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    overrides = [f"actor_rollout_ref.model.path={model}"]
    for key, value in (SETTINGS | settings).items():  # "+key" for what the configuration does not declare
        plus = "+" if key.startswith("+") else ""
        overrides.append(f"{plus}actor_rollout_ref.rollout.{key.removeprefix('+')}={value}")
    with initialize_config_dir(folder, version_base=None):
        return compose(trainer, overrides=overrides)


def rollout_config(model, **settings):
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import RolloutConfig

    config = compose_config(model, **settings).actor_rollout_ref.rollout
    return omega_conf_to_dataclass(config, dataclass_type=RolloutConfig)


def model_config(model, lora_rank=0):
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import HFModelConfig

    config = compose_config(model).actor_rollout_ref.model
    config.lora_rank = lora_rank
    return omega_conf_to_dataclass(config, dataclass_type=HFModelConfig)


def padded_prompts():
    """PROMPTS as a batch, padded on the left to PROMPT_LENGTH."""
    import torch
    from verl import DataProto

    ids = torch.tensor([[0] * (PROMPT_LENGTH - len(prompt)) + prompt for prompt in PROMPTS])
    mask = (ids > 0).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    batch = DataProto.from_dict({"input_ids": ids, "attention_mask": mask, "position_ids": positions})
    batch.meta_info.update(eos_token_id=EOS, pad_token_id=0, do_sample=False)
    return batch


def disturbed(model):
    """The model with small random numbers, the same each time, added to its weights in place."""
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.05)
    return model


def hf_greedy(model, total_length=None):
    """Greedy tokens of Hugging Face's own implementation, with the weights of `model` and with disturbed ones.

    RESPONSE_LENGTH tokens a prompt, or as many as `total_length` leaves.
    """
    import torch
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    lengths = [RESPONSE_LENGTH if total_length is None else total_length - len(prompt) for prompt in PROMPTS]

    def tokens():
        return [greedy_tokens(hf, prompt, length) for prompt, length in zip(PROMPTS, lengths, strict=True)]

    before = tokens()
    disturbed(hf)
    return {"before": before, "after": tokens()}


def greedy_tokens(hf, prompt, length):
    import torch

    out = hf.generate(input_ids=torch.tensor([prompt]), max_new_tokens=length, do_sample=False, eos_token_id=EOS)
    return out[0, len(prompt) :].tolist()
