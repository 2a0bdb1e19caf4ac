"""Probe: verl sends LoRA tensors to a real vllm engine (VLLMHijack). Usage: probe_vllm_lora.py MODEL

Rank 128, because from there on vllm-ascend computes LoRA in torch; below it calls NPU kernels.
"""

import asyncio
import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare()

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict  # noqa: E402
from rollout_config import (  # noqa: E402
    PROMPTS,
    RESPONSE_LENGTH,
    greedy_tokens,
    model_config,
    padded_prompts,
    rollout_config,
)
from transformers import AutoModelForCausalLM  # noqa: E402

MODEL = sys.argv[1]
RANK = 128


def adapted_model():
    """The model with an adapter whose B matrices are not zero, as after some training."""
    adapter = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["q_proj", "v_proj", "down_proj"])
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32), adapter)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


def main():
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    from verl.workers.rollout.base import get_rollout_class

    config, model = rollout_config(MODEL), model_config(MODEL, lora_rank=RANK)
    rollout = get_rollout_class("vllm", "sync")(config, model, device_mesh=None)

    def generate():
        return rollout.generate_sequences(padded_prompts()).batch["responses"].tolist()

    result = {"before": generate()}
    hf = adapted_model()
    tensors = get_peft_model_state_dict(hf)
    update = rollout.update_weights(tensors.items(), peft_config=hf.peft_config["default"], base_sync_done=True)
    asyncio.run(update)
    result["after"] = generate()
    result["hf"] = [greedy_tokens(hf, prompt, RESPONSE_LENGTH) for prompt in PROMPTS]
    print(json.dumps(result))


os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
main()
