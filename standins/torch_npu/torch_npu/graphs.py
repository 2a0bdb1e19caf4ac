"""Graphs on a CPU: what is computed while one is captured is written down, and computed again in a replay.

As on an NPU a replay works on the tensors of the capture, whatever Python does meanwhile, and an operator that was
captured as a task group runs with the arguments of its last update. A replay that waits for updates runs once all of
its tasks have been updated (on an NPU each task waits for an event). Shows nothing about memory pools or streams.
"""

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_READS_BACK = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


@dataclass
class Task:
    """An operator of a graph whose arguments can be replaced."""

    function: Any = None
    arguments: dict = field(default_factory=dict)
    graph: Any = None
    updated: bool = False

    def __call__(self):
        self.function(**self.arguments)


class NPUGraph:
    """The calls of one capture, in order: operators with their arguments and results, and tasks."""

    def __init__(self):
        self.calls, self.waits = [], False

    def replay(self):
        tasks = self.tasks()
        for task in tasks:
            task.updated = False
        self.waits = bool(tasks)
        if not tasks:
            self.run()

    def tasks(self):
        return [call for call in self.calls if isinstance(call, Task)]

    def has_been_updated(self):
        if self.waits and all(task.updated for task in self.tasks()):
            self.waits = False
            self.run()

    def run(self):
        for call in self.calls:
            if isinstance(call, Task):
                call()
                continue
            function, args, kwargs, result = call
            for old, new in zip(_tensors(result), _tensors(function(*args, **kwargs)), strict=True):
                old.copy_(new)


class _Capture(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self.graph, self.task = graph, None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in _READS_BACK:
            raise RuntimeError(f"{function} reads a value back, which a graph cannot")
        result = function(*args, **(kwargs or {}))
        self.graph.calls.append((function, args, kwargs or {}, result))
        return result


class _Now:
    """What is being captured or updated at this moment."""

    capture = None
    update = None


@contextlib.contextmanager
def graph(npu_graph, pool=None, stream=None):
    """torch.npu.graph: captures what runs inside."""
    if _Now.capture is not None:
        raise RuntimeError("a graph is being captured already")
    capture = _Now.capture = _Capture(npu_graph)
    try:
        with capture:
            yield
    finally:
        _Now.capture = None


def task_group_begin(stream):
    _Now.capture.task = Task(graph=_Now.capture.graph)


def task_group_end(stream):
    task, _Now.capture.task = _Now.capture.task, None
    if task.function is None:
        raise RuntimeError("a task group without an operator that can be updated")
    _Now.capture.graph.calls.append(task)
    return task


def task_update_begin(stream, handle):
    _Now.update = handle


def task_update_end(stream):
    task, _Now.update = _Now.update, None
    task.updated = True
    task.graph.has_been_updated()


def run_or_update(function, arguments):
    """Calls an operator; in a task group it is kept as its task, in an update it takes the place of the task."""
    if _Now.update is not None:
        _Now.update.function, _Now.update.arguments = function, arguments
        return
    with _disable_current_modes():
        function(**arguments)
    if _Now.capture is not None:
        if _Now.capture.task is None:
            raise RuntimeError("an operator whose arguments change is captured outside a task group")
        _Now.capture.task.function, _Now.capture.task.arguments = function, arguments


def as_one_operator(function):
    """`function`, which returns nothing, as a graph sees it: one call, whatever it is made of here."""

    def called(*args, **kwargs):
        with _disable_current_modes():
            function(*args, **kwargs)
        if _Now.capture is not None:
            _Now.capture.graph.calls.append((function, args, kwargs, None))

    return called


def moment():
    """What happens now: "capture", "update" or, outside both, "eager"."""
    return "update" if _Now.update is not None else "capture" if _Now.capture is not None else "eager"


def _tensors(result):
    values = result if isinstance(result, (list, tuple)) else [result]
    return [value for value in values if isinstance(value, torch.Tensor)]
