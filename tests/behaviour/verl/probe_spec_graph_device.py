"""Graphs for the stand-in of an NPU: what a probe of graph mode calls before vllm is imported, after `npu_engine`.

Stands for ACL graphs (torch.npu.NPUGraph): a capture keeps the operators that run in it, a replay runs them again on the
same tensors and writes the results where the captured ones lie. That is what piecewise graphs need, in which attention
is never part of a graph. Full graphs update attention's parameters inside a captured graph, which this cannot do.
"""

from typing import ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph:
    """A sequence of operator calls with the tensors that they read and wrote."""

    captured: ClassVar[int] = 0
    replayed: ClassVar[int] = 0

    def __init__(self):
        self.calls = []

    def replay(self):
        type(self).replayed += 1
        for function, args, kwargs, result in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                # Views and operators in place have given the captured tensor's own memory back.
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _Capture(TorchDispatchMode):
    def __init__(self, graph, pool=None, stream=None):
        super().__init__()
        self.graph = graph

    def __enter__(self):
        RecordedGraph.captured += 1
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        self.graph.calls.append((function, args, kwargs, result))
        return result


def prepare_graphs():
    """Gives the stand-in device graphs. The owner of a tensor keeps it, so that a weak reference is the tensor itself."""
    torch.npu.NPUGraph, torch.npu.graph = RecordedGraph, _Capture
    torch.npu.graph_pool_handle = lambda: 0
    torch.ops._C_ascend.weak_ref_tensor = lambda tensor: tensor
