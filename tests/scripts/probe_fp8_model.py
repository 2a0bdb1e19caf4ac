"""Probe: a tiny model of DeepSeek-V3's architecture as DeepSeek publishes them: fp8 in blocks, MTP, several files.

Usage: probe_fp8_model.py make FOLDER            writes it
       probe_fp8_model.py compare FP8 BF16       what fp8_to_bf16.py made of it, against plain PyTorch
       probe_fp8_model.py shards FOLDER N BYTES  N files of one fp8 matrix each, to measure memory with

No size is a multiple of the block, so that blocks at the edges are cut. Scales stand in other files than their weights.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config

BLOCK = 128
LAYERS = 3
SHAPE = {
    "vocab_size": 96,
    "hidden_size": 192,
    "intermediate_size": 320,
    "moe_intermediate_size": 144,
    "num_hidden_layers": LAYERS,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 48,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "max_position_embeddings": 128,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QUANTIZATION = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
}
# DeepSeek keeps these in bf16.
NOT_QUANTIZED = ("embed_tokens", "lm_head", "norm", "mlp.gate.weight", "eh_proj")


def quantized(weight):
    """The weight in fp8 and a scale a block: the largest value of a block becomes fp8's largest, 448."""
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    scales = torch.empty(rows, columns)
    result = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for row in range(rows):
        for column in range(columns):
            part = (slice(row * BLOCK, (row + 1) * BLOCK), slice(column * BLOCK, (column + 1) * BLOCK))
            scales[row, column] = weight[part].float().abs().max() / 448
            result[part] = (weight[part].float() / scales[row, column]).to(torch.float8_e4m3fn)
    return result, scales


def published_tensors():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(DeepseekV3Config(**SHAPE), dtype=torch.bfloat16)
    tensors = {}
    for name, tensor in model.state_dict().items():
        value = torch.randn(tensor.shape) * 0.2 + ("norm" in name)
        if name.endswith("e_score_correction_bias"):
            tensors[name] = value
        elif tensor.dim() == 2 and not any(part in name for part in NOT_QUANTIZED):
            tensors[name], tensors[f"{name}_scale_inv"] = quantized(value)
        else:
            tensors[name] = value.bfloat16()
    prefix, last = f"model.layers.{LAYERS}.", f"model.layers.{LAYERS - 1}."
    mtp = {name.replace(last, prefix): tensor.clone() for name, tensor in tensors.items() if name.startswith(last)}
    mtp[f"{prefix}eh_proj.weight"] = torch.randn(192, 384).bfloat16()
    mtp[f"{prefix}shared_head.head.weight"] = torch.randn(96, 192).bfloat16()
    return tensors | mtp


def make(folder):
    folder = Path(folder)
    folder.mkdir(parents=True)
    tensors = published_tensors()
    names = sorted(tensors)
    # By turns, so that most scales are in another file than their weight; one file holds MTP alone.
    mtp = [name for name in names if name.startswith(f"model.layers.{LAYERS}.")]
    rest = [name for name in names if name not in mtp]
    groups = [rest[start::12] for start in range(12)] + [mtp]
    mapping = {}
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05}-of-{len(groups):06}.safetensors"
        save_file({name: tensors[name] for name in group}, folder / file, metadata={"format": "pt"})
        mapping |= dict.fromkeys(group, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": mapping}))
    config = DeepseekV3Config(**SHAPE, architectures=["DeepseekV3ForCausalLM"]).to_dict()
    config |= {"num_nextn_predict_layers": 1, "quantization_config": QUANTIZATION, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "modeling_deepseek.py").write_text("# the model's own code\n")
    return {"files": len(groups), "tensors": len(tensors)}


def reference(tensors):
    """Plain PyTorch: the whole matrix of scales, spread over its blocks, times the weight in float32."""
    result = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv") or name.startswith(f"model.layers.{LAYERS}."):
            continue
        scales = tensors.get(f"{name}_scale_inv")
        if scales is not None:
            spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
            tensor = (tensor.float() * spread[: tensor.shape[0], : tensor.shape[1]]).bfloat16()
        result[name] = tensor
    return result


def loaded(folder):
    mapping = json.loads((Path(folder) / "model.safetensors.index.json").read_text())["weight_map"]
    return {
        name: tensor for file in sorted(set(mapping.values())) for name, tensor in load_file(f"{folder}/{file}").items()
    }


def compare(fp8, bf16):
    expected, found = reference(loaded(fp8)), loaded(bf16)
    model, report = AutoModelForCausalLM.from_pretrained(bf16, dtype=torch.bfloat16, output_loading_info=True)
    plain = AutoModelForCausalLM.from_config(DeepseekV3Config(**SHAPE), dtype=torch.bfloat16)
    plain.load_state_dict(expected)
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        logits, wanted = model.eval()(tokens).logits, plain.eval()(tokens).logits
    config = json.loads((Path(bf16) / "config.json").read_text())
    return {
        "same_names": sorted(expected) == sorted(found),
        "different": [name for name in expected if not torch.equal(expected[name], found.get(name, torch.empty(0)))],
        "types": sorted({str(tensor.dtype) for tensor in found.values()}),
        "not_loaded": [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]],
        "same_logits": torch.equal(logits, wanted),
        "logits_vary": bool(logits.float().std() > 0.01),
        "quantization": config.get("quantization_config"),
        "mtp": config["num_nextn_predict_layers"],
    }


def shards(folder, count, size):
    folder = Path(folder)
    folder.mkdir(parents=True)
    side = int(int(size) ** 0.5) // BLOCK * BLOCK
    mapping = {}
    for number in range(int(count)):
        weight = torch.ones(side, side).to(torch.float8_e4m3fn)
        name, file = f"model.layers.{number}.weight", f"model-{number}.safetensors"
        save_file({name: weight, f"{name}_scale_inv": torch.ones(side // BLOCK, side // BLOCK)}, folder / file)
        mapping |= {name: file, f"{name}_scale_inv": file}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    config = {"num_hidden_layers": int(count), "quantization_config": QUANTIZATION}
    (folder / "config.json").write_text(json.dumps(config))
    return side * side


print(json.dumps({"make": make, "compare": compare, "shards": shards}[sys.argv[1]](*sys.argv[2:])))
