"""Run when Python starts in an environment that has this package (patchctl_standins.pth): each stand-in is put in place
right after the module that it is for was imported, or before it, so that upstream's own entry modules and Ray's workers need no
change.

Nothing happens before such an import, and nothing to a process that imports none. PATCHCTL_STANDINS=0 turns it off;
PATCHCTL_STANDINS_WATCH=MODULE=PLACE:FUNCTION[,...] has more functions called, by which a test looks on.
"""

import importlib
import importlib.abc
import os
import sys

# Before this module is imported, this function of a stand-in is called.
BEFORE = {
    "mindspeed.megatron_adaptor": "patchctl_standins.training:before_adaptor",
}
# After this module was imported, this function of a stand-in is called with it.
AFTER = {
    "mindspeed.megatron_adaptor": "patchctl_standins.training:after_adaptor",
    "torch.distributed.fsdp._init_utils": "npu_training:synchronise_modules_of_the_device",
    "torch_npu": "npu_training:answer_for_the_device",
    "verl.plugin.platform.platform_npu": "npu_training_0_9:name_the_device",
    "verl.utils.device": "npu_training:name_the_device",
    "vllm": "patchctl_standins.engine:prepare_on_import",
}
AFTER.update(one.split("=", 1) for one in os.environ.get("PATCHCTL_STANDINS_WATCH", "").split(",") if "=" in one)


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules of AFTER where the other finders do, and has the function called when one has run."""

    def find_spec(self, name, path=None, target=None):
        if name not in AFTER:
            return None
        if name in BEFORE:
            _called(BEFORE[name])()
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = Loader(spec.loader, AFTER[name])
                return spec
        return None


class Loader(importlib.abc.Loader):
    """The module's own loader, and a call after it."""

    def __init__(self, own, function):
        self._own = own
        self._function = function

    def __getattr__(self, name):  # resources, sources: whatever else a loader is asked for
        return getattr(self._own, name)

    def create_module(self, spec):
        return self._own.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        _called(self._function)(module)


def _called(text):
    place, _, function = text.partition(":")
    return getattr(importlib.import_module(place), function)


if os.environ.get("PATCHCTL_STANDINS") != "0" and not any(isinstance(one, AfterImport) for one in sys.meta_path):
    sys.meta_path.insert(0, AfterImport())
