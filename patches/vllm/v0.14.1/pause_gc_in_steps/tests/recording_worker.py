"""A worker for `worker_cls` that writes down what the garbage collector does in the process that runs the steps."""

import gc
import sys
import weakref

from vllm_ascend.worker.worker import NPUWorker

STEP_FUNCTIONS = ("step", "step_with_batch_queue")
# Low, so that automatic collections surely fall into the few steps of a test.
THRESHOLD = (50, 3, 3)


class Cycle:
    """Garbage that only the collector can free, as each step of a real engine may leave some."""

    def __init__(self):
        self.itself = self


def in_engine_step():
    """Whether EngineCore's step is on the stack of this thread."""
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name in STEP_FUNCTIONS and code.co_filename.endswith("v1/engine/core.py"):
            return True
        frame = frame.f_back
    return False


class RecordingWorker(NPUWorker):
    """NPUWorker that records collections, by Python's own gc.callbacks, and the collector's state in each step."""

    def watch_gc(self):
        """Starts a new record."""
        gc.set_threshold(*THRESHOLD)
        self.enabled_in_steps = []
        self.in_steps = 0
        self.while_paused = []
        self.garbage = weakref.WeakSet()
        self.most_garbage = 0
        self.fail_at_step = None
        if self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)

    def gc_log(self):
        """Steps, the collector's state in them, collections in steps, and after which steps others were made.

        Of the others only those count that were made while automatic collection was off.
        """
        return {
            "steps": len(self.enabled_in_steps),
            "enabled_in_steps": sorted(set(self.enabled_in_steps)),
            "collections_in_steps": self.in_steps,
            "collections_after_steps": self.while_paused,
            "most_garbage": self.most_garbage,
            "enabled_when_idle": gc.isenabled(),
            "threshold": gc.get_threshold(),
        }

    def fail_at(self, step):
        """Makes that step fail, as one does when a device runs out of memory."""
        self.fail_at_step = step

    def execute_model(self, scheduler_output):
        self.enabled_in_steps.append(gc.isenabled())
        self.garbage.add(Cycle())
        self.most_garbage = max(self.most_garbage, len(self.garbage))
        if self.fail_at_step == len(self.enabled_in_steps):
            raise RuntimeError("out of memory, says the test")
        return super().execute_model(scheduler_output)

    def _on_collection(self, phase, info):
        if phase != "start":
            return
        if in_engine_step():
            self.in_steps += 1
        elif not gc.isenabled():
            self.while_paused.append(len(self.enabled_in_steps))
