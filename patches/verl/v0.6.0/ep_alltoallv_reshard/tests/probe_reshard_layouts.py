"""Where vllm places experts; shared by the resharding tests and probes, without torch."""


def kept_experts(experts: int, size: int, rank: int) -> tuple[int, ...]:
    """vllm's linear placement: consecutive experts, and one more on each of the first ranks when it does not divide."""
    each, more = divmod(experts, size)
    first = rank * each + min(rank, more)
    return tuple(range(first, first + each + (rank < more)))
