"""npu_engine for vllm-ascend 0.23: what it answers there, and what the newer worker asks for besides."""

import npu_engine


def prepare():
    """Makes NPUWorker run on the CPU, in this process. Call it before anything of vllm is imported."""
    npu_engine._register_customop = _register_customop
    npu_engine.prepare()
    import vllm_ascend.worker.block_table

    vllm_ascend.worker.block_table._compute_slot_mapping_kernel = SlotMapping()


def _register_customop(vllm_config=None):
    """None of vllm-ascend's layers: without the fused operators vllm's own run, in plain torch. Experts are refused, since vllm's
    own are for other devices."""
    if vllm_config is not None and vllm_config.model_config.is_moe:
        raise NotImplementedError("vllm-ascend 0.23's experts have no stand-in")


class SlotMapping:
    """vllm's Triton kernel `_compute_slot_mapping_kernel`, called as kernels are, in plain torch and without context parallelism."""

    def __getitem__(self, grid):
        (programs,) = grid
        return lambda *args, **constants: self._run(programs - 1, *args, **constants)

    def _run(self, requests, tokens, max_tokens, starts, positions, table, stride, block_size, slots, **constants):
        """Writes into `slots`, [max_tokens], the place in the cache of each token; the last program of the grid pads."""
        if constants["TOTAL_CP_WORLD_SIZE"] != 1:
            raise NotImplementedError("the stand-in has slots without context parallelism alone")
        for request in range(requests):
            of_request = slice(int(starts[request]), int(starts[request + 1]))
            at = positions[of_request]
            slots[of_request] = table[request, at // block_size].long() * block_size + at % block_size
        slots[tokens:max_tokens] = constants["PAD_ID"]
