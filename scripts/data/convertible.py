"""Says whether verl's conversion script can take a model, and prints whether it has experts: `python -m data.convertible DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from data.checkpoint import read_config
from data.ending import WrongUse, finish

# support_distributed_convert of verl v0.6.0, scripts/converter_hf_to_mcore.py.
EXPERTS = ("DeepseekV3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen2MoeForCausalLM")


def main() -> int:
    folder = Path(sys.argv[1])
    config = read_config(folder)
    if config.get("quantization_config") or config.get("num_nextn_predict_layers"):
        raise WrongUse(
            "its weights are quantized, or have layers for multi-token prediction; verl v0.6.0 converts neither",
            where=str(folder / "config.json"),
            hint=f"fp8_to_bf16.py {folder} {folder}-bf16",
        )
    experts = set(config.get("architectures") or []) & set(EXPERTS)
    print("yes" if experts else "no")
    return 0


if __name__ == "__main__":
    sys.exit(finish(main))
