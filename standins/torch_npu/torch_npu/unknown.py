"""Modules and names of the NPU software that this stand-in has nothing for."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from unittest.mock import MagicMock

# torchair (graph mode) and acl (the CANN runtime's Python binding) come with torch_npu.
ROOTS = ("torch_npu", "torchair", "acl")
# What a package imports itself when it is imported; vllm-ascend from v0.16.0rc1 looks for these in sys.modules.
IMPORTED_WITH = {"torchair": ("torchair.fx_summary", "torchair.npu_fx_compiler")}


class StandInModule(types.ModuleType):
    """A module whose unknown names are mocks, the same mock each time."""

    __path__ = ()

    def __getattr__(self, name):
        # Dunder names must stay unknown: import machinery, pickle and inspect decide by their absence.
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for every module under ROOTS that no file provides."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ROOTS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandInModule(spec.name)

    def exec_module(self, module):
        """Nothing else to run: the module is made of its unknown names."""
        for name in IMPORTED_WITH.get(module.__name__, ()):
            importlib.import_module(name)


def install():
    """Puts the finder last, so that real files are found first."""
    sys.meta_path.append(StandInFinder())
