"""npu_engine_0_23 with graphs: what vllm-ascend 0.23 asks for besides when it captures them and runs them."""

import npu_engine
import npu_engine_0_23


def prepare(engine=npu_engine_0_23):
    """Makes NPUWorker capture graphs on the CPU (torch_npu's stand-in has them), beside what `engine`, npu_experts_0_23 for a model
    with experts, prepares. Call it before anything of vllm is imported."""
    engine.prepare()
    npu_engine.leave_compilation_out()
    import torch
    import torch_npu._C  # else the engine imports it, and what is set here is gone

    torch.accelerator.synchronize = lambda device=None: None
    torch_npu._C._weak_ref_tensor = torch.ops._C_ascend.weak_ref_tensor


def noted(steps):
    """From here on each replay is noted in `steps` by the tokens that its graph was captured for."""
    from torch_npu.graphs import NPUGraph
    from vllm.forward_context import get_forward_context

    replay = NPUGraph.replay

    def noting(self):
        steps.append(get_forward_context().batch_descriptor.num_tokens)
        replay(self)

    NPUGraph.replay = noting
