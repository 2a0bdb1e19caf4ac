"""Probe: what an engine was given in each update, and holds after it, beside Hugging Face's weights. For DeepSeek-V3.

Usage: updates.py MODEL WATCHED UPDATES. Reads what `watch` and `held` wrote. Of each update, by GROUPS of names: how many tensors
training gave, how many the engine's ranks hold, and the largest difference between what is held and what the given weights say, laid
out as the engine's layers have it: computed here from Hugging Face's names, by no code of the engine's. Prints
{update: {"groups": {group: {"given", "numbers", "held", "differs", "changed"}}, "ranks"}}: "changed" is the largest difference to the
update before, for the first to the model's file, and "ranks" what each rank measured.
"""

import json
import re
import sys
from pathlib import Path

import torch
from answers import weights_of
from safetensors.torch import load_file
from transformers import AutoConfig

# By what a name has in it, the first that fits.
GROUPS = {
    "W_UV": "W_UV (of kv_b_proj)",
    "W_UK_T": "W_UK_T (of kv_b_proj)",
    "shared_experts": "shared experts",
    "mlp.experts": "experts",
    "e_score_correction_bias": "router's bias",
    "mlp.gate.weight": "router",
    "norm": "layernorms",
    "kv_b_proj": "kv_b_proj",
    "q_b_proj": "q_b_proj",
    "a_proj": "q_a_proj, kv_a_proj_with_mqa",
    "o_proj": "o_proj",
    "mlp": "dense layer",
    "": "embedding, output layer",
}
MERGED = {"fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"), "gate_up_proj": ("gate_proj", "up_proj")}


def group_of(name):
    return next(group for part, group in GROUPS.items() if part in name)


class Expected:
    """What one rank of the engine has to hold, of Hugging Face's weights by name."""

    def __init__(self, weights, config, place):
        self.weights, self.config, self.place = weights, config, place

    def of(self, name, shape):
        """The tensor called `name` in vllm's model. Its shape says over which dimension it is divided, if it is."""
        layer, _, kind = name.rpartition(".self_attn.")
        if kind.endswith(("W_UV", "W_UK_T")):
            return self._derived(f"{layer}.self_attn.kv_b_proj.weight", kind)
        if match := re.fullmatch(r"(.*\.mlp\.experts)\.(w13|w2)_weight", name):
            return torch.stack([self._expert(f"{match[1]}.{one}", match[2]) for one in self.place["experts"][match[1]]])
        name = name.replace(".mla_attn.", ".")
        for merged, parts in MERGED.items():
            if f".{merged}." in name:
                whole = [self.weights[name.replace(merged, part)] for part in parts]
                rows = [len(part) * shape[0] // sum(map(len, whole)) for part in whole]
                return torch.cat([self._own(part, (n, *shape[1:])) for part, n in zip(whole, rows, strict=True)])
        return self._own(self.weights[name], shape)

    def _own(self, whole, shape):
        """This rank's part of a tensor, where tensor parallel ranks have parts."""
        for dimension, size in enumerate(shape):
            if whole.shape[dimension] == size * self.place["tensor ranks"] != size:
                return whole.chunk(self.place["tensor ranks"], dimension)[self.place["tensor rank"]]
        return whole

    def _expert(self, name, kind):
        """As the kernels read it: transposed, gate and up beside each other."""
        parts = ("gate_proj", "up_proj") if kind == "w13" else ("down_proj",)
        return torch.cat([self.weights[f"{name}.{part}.weight"] for part in parts]).t()

    def _derived(self, name, kind):
        config, heads = self.config, self.weights[name].unflatten(0, (self.config.num_attention_heads, -1))
        own = heads.chunk(self.place["tensor ranks"])[self.place["tensor rank"]]
        keys, values = own.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        return values.transpose(1, 2) if kind.endswith("W_UV") else keys


def furthest(one, other):
    if one.shape != other.shape:
        raise ValueError(f"{tuple(one.shape)} is beside {tuple(other.shape)}")
    return (one.float() - other.float()).abs().max().item() if one.numel() else 0.0


def looked_at(config, watched, update, before):
    """The groups of one update, its weights, and what each rank measured."""
    weights, disagreeing = weights_of(watched, update)
    if disagreeing:
        raise ValueError(f"ranks were given different values: {disagreeing}")
    groups, ranks = {}, []

    def group(name):
        return groups.setdefault(group_of(name), {"given": 0, "numbers": 0, "held": 0, "differs": 0.0, "changed": 0.0})

    for name, weight in weights.items():
        one = group(name)
        one["given"], one["numbers"] = one["given"] + 1, one["numbers"] + weight.numel()
        one["changed"] = max(one["changed"], furthest(weight, before[name]))
    for rank, file in enumerate(sorted(watched.glob(f"held.{update}.*.safetensors"))):
        place = json.loads(file.with_suffix(".json").read_text())
        sizes = [one.nbytes for one in load_file(watched / f"weights.{update}.{rank}.safetensors").values()]
        measured = ("tensor rank", "made", "most", "held", "addresses kept")
        ranks.append({name: place[name] for name in measured} | {"given": sum(sizes), "largest": max(sizes)})
        expected = Expected(weights, config, place)
        for name, tensor in load_file(file).items():
            one = group(name)
            one["held"] += 1
            one["differs"] = max(one["differs"], furthest(tensor, expected.of(name, tuple(tensor.shape))))
    return groups, weights, ranks


def main():
    model, watched = Path(sys.argv[1]), Path(sys.argv[2])
    config = AutoConfig.from_pretrained(model)
    results, before = {}, {name: one for part in model.glob("*.safetensors") for name, one in load_file(part).items()}
    for update in json.loads(sys.argv[3]):
        groups, weights, ranks = looked_at(config, watched, update, before)
        results[update], before = {"groups": groups, "ranks": ranks}, weights
    print(json.dumps(results))


if __name__ == "__main__":
    main()
