"""What every process that a test starts on upstream code is given. Nothing else is inherited but PATH: a proxy, a PYTHONPATH or
a VLLM_* of the person who runs the tests must not decide their outcome."""

from pathlib import Path

# What Python compiled of the interpreter's own packages and of make's trees, which no session has to do again: 12 CPU seconds for torch
# and transformers, 6 for vllm.
COMPILED = Path(__file__).resolve().parents[1] / "build" / "pycache"
NOBODYS = {
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "PYTHONUNBUFFERED": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}
