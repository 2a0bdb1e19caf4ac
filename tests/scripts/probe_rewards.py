"""Probe: answers to the rows of a prepared file, scored by verl's real reward managers.

Usage: probe_rewards.py JOBS.json   A job: {"file": parquet, "answers": [[index of a row, text]...], "manager": name,
"reward": path of a reward file or null, "kwargs": {...}, "overlong": [length, buffer] or null}.
Prints for each {"scores": a number an answer, "extra": {key: list}, "where": whether each score stands on the last token}.

The tokenizer has a token a byte, so that every text comes back from it as it went in.
"""

import json
import sys

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"


def byte_tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.chat_template = TEMPLATE
    return fast


def batch_of(rows, answers, tokenizer):
    """What a rollout gives: the rows' own tensors, and each answer padded on the right."""
    batch = collate_fn([dict(rows[index]) for index, _ in answers])
    encoded = [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for _, text in answers]
    width = max(map(len, encoded))
    padded = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids in encoded])
    mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in encoded])
    tensors = {
        "prompts": batch["input_ids"],
        "responses": padded,
        "attention_mask": torch.cat([batch["attention_mask"], mask], dim=1),
    }
    others = {key: value for key, value in batch.items() if isinstance(value, np.ndarray)}
    return DataProto(TensorDict(tensors, batch_size=len(answers)), others), mask.sum(dim=1) - 1


def score(job, tokenizer):
    # verl keeps the first custom module of a process for good.
    sys.modules.pop("custom_module", None)
    settings = {"prompt_key": "prompt", "max_prompt_length": 2048, "truncation": "error", "cache_dir": "cache"}
    rows = RLHFDataset([job["file"]], tokenizer, OmegaConf.create(settings))
    function = {"path": job["reward"], "name": "compute_score", "reward_kwargs": job.get("kwargs", {})}
    config = {"reward_model": {"reward_manager": job["manager"], "sandbox_fusion": {"url": None}}}
    config |= {"custom_reward_function": function} if job["reward"] else {}
    config = OmegaConf.create(config | {"data": {"reward_fn_key": "data_source"}})
    length, buffer = job.get("overlong") or (4096, 0)
    overlong = OmegaConf.create({"enable": bool(buffer), "len": buffer, "penalty_factor": 1.0, "log": False})
    more = {"max_resp_len": length, "overlong_buffer_cfg": overlong} if job["manager"] == "dapo" else {}
    data, last = batch_of(rows, job["answers"], tokenizer)
    result = load_reward_manager(config, tokenizer, num_examine=0, **more)(data, return_dict=True)
    tensor = result["reward_tensor"]
    rest = tensor.scatter(1, last[:, None], 0.0)
    extra = {
        key: [float(one) if not isinstance(one, str) else one for one in values]
        for key, values in result["reward_extra_info"].items()
    }
    return {"scores": tensor.sum(dim=1).tolist(), "extra": extra, "last_token_only": not rest.any().item()}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = json.load(file)
    tokenizer = byte_tokenizer()
    print(json.dumps({name: score(job, tokenizer) for name, job in jobs.items()}))


main()
