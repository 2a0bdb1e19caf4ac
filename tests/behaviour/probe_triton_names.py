"""Probe: what a Triton kernel of MindSpeed's says when it is launched, a name of triton.language when it is called, and torch of triton."""

import json

import triton_names

triton_names.install()

import torch  # noqa: E402
import triton.language  # noqa: E402
from mindspeed.ops.triton.l2norm import l2norm_fwd_kernel1  # noqa: E402
from torch.utils._triton import has_triton  # noqa: E402


def refused(function, *args):
    try:
        function(*args)
    except NotImplementedError as refusal:
        return str(refusal)
    raise RuntimeError("it was called")


launched = refused(l2norm_fwd_kernel1[(2,)], torch.ones(2, 8))
print(json.dumps({"kernel": launched, "name": refused(triton.language.load, 0), "torch has triton": has_triton()}))
