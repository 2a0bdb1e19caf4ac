"""Probe: how vllm-ascend 0.23's own runner pads the query lengths of a step that goes into a full graph, with its own buffer.

Every batch of up to four requests with one to three tokens each, in graphs of up to 12 tokens: cudagraph_mode FULL, whose graphs are mixed, and
FULL_DECODE_ONLY with one token a request and with three. Prints for each mode how many steps were padded, and those whose last length
is not the graph's number of tokens, whose running requests' lengths were changed, or whose lengths fall.
"""

import itertools
import json

import npu_engine_0_23

npu_engine_0_23.prepare()

from types import SimpleNamespace  # noqa: E402  (the platform must be prepared first)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from vllm.config import CUDAGraphMode  # noqa: E402
from vllm.v1.utils import CpuGpuBuffer  # noqa: E402
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner  # noqa: E402

MOST, LARGEST, DRAFTED = 4, 12, 3


def padded(mode, per_request, lengths, tokens, captured):
    """Lengths, cumulated, of a step's requests as its graph of `tokens` tokens gets them."""
    buffer = CpuGpuBuffer(MOST + 2, dtype=torch.int32, device="cpu", pin_memory=False)
    buffer.np[: len(lengths) + 1] = np.cumsum([0, *lengths])
    runner = SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mode=mode),
        uniform_decode_query_len=per_request,
        arange_np=np.arange(MOST + 2),
    )
    pad = NPUModelRunner._pad_query_start_loc_for_fia
    requests = pad(runner, buffer, tokens, captured, len(lengths), CUDAGraphMode.FULL, captured)
    return buffer.gpu[1 : requests + 1].tolist()


def steps(mode, per_request):
    """(lengths of the requests, tokens of the graph, requests that it was captured with)."""
    mixed = mode is CUDAGraphMode.FULL
    choices = range(1, DRAFTED + 1) if mixed else [per_request]
    for requests in range(1, MOST + 1):
        for lengths in itertools.product(choices, repeat=requests):
            sizes = (
                range(sum(lengths), LARGEST + 1) if mixed else range(sum(lengths), MOST * per_request + 1, per_request)
            )
            yield from ((lengths, tokens, requests if mixed else tokens // per_request) for tokens in sizes)


def looked_at(mode, per_request):
    wrong, count = [], 0
    for lengths, tokens, captured in steps(mode, per_request):
        ends = padded(mode, per_request, lengths, tokens, captured)
        count += ends[-1] != sum(lengths) or len(ends) != len(lengths)
        kept = ends[: len(lengths)] == np.cumsum(lengths).tolist()
        if ends[-1] != tokens or not kept or ends != sorted(ends):
            wrong.append([lengths, tokens, ends])
    return {"padded": count, "wrong": wrong}


result = {
    "mixed": looked_at(CUDAGraphMode.FULL, 1),
    "mixed, with drafts": looked_at(CUDAGraphMode.FULL, DRAFTED),
    "decode": looked_at(CUDAGraphMode.FULL_DECODE_ONLY, 1),
    "decode, with drafts": looked_at(CUDAGraphMode.FULL_DECODE_ONLY, DRAFTED),
}
print(json.dumps(result))
