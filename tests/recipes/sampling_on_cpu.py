"""What sampling with top_k or top_p wants of the stand-ins from vllm-ascend 0.23 on beside what every run has."""


def name_the_operator(sampler):
    """The operator has another name and another order there; the stand-in's reference is of the older one. Proofs name that module."""
    from torch_npu.reference_ops import apply_top_k_top_p

    sampler.torch_npu.npu_top_k_top_p = lambda logits, k=None, p=None: apply_top_k_top_p(logits, p, k)
