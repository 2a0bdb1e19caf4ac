"""Probe: writes a tiny model with random weights and the data of a shrunk recipe. Usage: made_model.py FOLDER JOB

JOB is JSON: {"name": ..., "architecture": ..., sizes by Hugging Face's names, "data_source": ..., "answer": ...}. Writes
FOLDER/model (config, bf16 weights, tokenizer) and FOLDER/train.parquet. Half of the tokenizer's words are answers, right and
wrong ones, in the forms that the rewards look for: a random model gets some of every group right.
"""

import json
import sys
from pathlib import Path

import pandas
import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/demo"))

from tiny_model import SPECIAL, character_tokenizer

VOCABULARY = 512
ROWS = 64
ANSWERS = ["Answer: 1\n", "Answer: 2\n", "\\boxed{1}", "\\boxed{2}", "\\boxed{A}", "\\boxed{B}"]
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    # Larger than usual, so that the likeliest token is so by more than rounding.
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OF = {
    "Qwen2": ("qwen2", {}),
    "Qwen3": ("qwen3", {"head_dim": 16}),
    "Qwen3Moe": (
        "qwen3_moe",
        {
            "head_dim": 16,
            "moe_intermediate_size": 48,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
        },
    ),
    "DeepseekV3": (
        "deepseek_v3",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "rope_scaling": {
                "rope_type": "yarn",
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
            "topk_method": "noaux_tc",  # this and the next are published, and vllm reads them
            "scoring_func": "sigmoid",
            "num_nextn_predict_layers": 0,
            "moe_intermediate_size": 48,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "aux_loss_alpha": 0.001,  # verl's config converter reads it by this name
        },
    ),
}


def tokenizer():
    characters = [chr(code) for code in range(32, 127)]
    # Invisible at the end: other tokens of the same text.
    rest = range(VOCABULARY - len(SPECIAL) - len(characters))
    characters += [ANSWERS[index % len(ANSWERS)] + "\u200b" * (index // len(ANSWERS)) for index in rest]
    # A line's end as byte-level BPE writes it: transformers makes a tokenizer of that kind for Qwen2 and 3, and verl asks it for one.
    characters[-1] = "\u010a"
    return character_tokenizer(characters, "{% for m in messages %}{{ m['content'] }}{% endfor %}")


def main():
    folder, job = Path(sys.argv[1]), json.loads(sys.argv[2])
    kind, own = OF[job["architecture"]]
    given = {name: value for name, value in job.items() if name not in ("architecture", "data_source", "answer")}
    config = AutoConfig.for_model(kind, **(SHAPE | own | given))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)
    if config.pad_token_id is not None:
        # Zeros otherwise, whose RMSNorm has a gradient a thousand times that of others: of a step with an answer that has this token,
        # the gradient norm would tell of nothing else.
        torch.nn.init.normal_(
            model.get_input_embeddings().weight.data[config.pad_token_id], std=config.initializer_range
        )
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    rows = [
        {
            "data_source": job["data_source"],
            "prompt": [{"role": "user", "content": f"{number}+{number}="}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": job["answer"]},
            "extra_info": {"index": number},
        }
        for number in range(ROWS)
    ]
    pandas.DataFrame(rows).to_parquet(folder / "train.parquet")
    print(json.dumps(str(folder)))


if __name__ == "__main__":
    main()
