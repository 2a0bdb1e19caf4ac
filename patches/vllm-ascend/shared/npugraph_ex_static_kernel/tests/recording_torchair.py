"""Stands for torchair (graph compiler of torch_npu 7.3), which has no build for a machine without CANN.

Options, their defaults and the values they take are those of torchair's documentation ("CompilerConfig" and "static
kernel compilation" in its user guide). As in torchair, an option that is not declared cannot be set, and here it cannot
be read either. The backend runs the graph as it is and keeps the configuration that it was asked for.
"""

import sys
import types

ANY = None
INTS = "a list of integers"


class Options:
    """Named options; `declared` maps a name to (default, allowed values) or to a group of further options."""

    def __init__(self, name, declared):
        values = {key: value if isinstance(value, Options) else value[0] for key, value in declared.items()}
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_declared", declared)
        object.__setattr__(self, "_values", values)

    def __getattr__(self, key):
        if key not in self._declared:
            raise AttributeError(f"{self._name} has no option {key}, all options {sorted(self._declared)}")
        return self._values[key]

    def __setattr__(self, key, value):
        if key not in self._declared or isinstance(self._declared[key], Options):
            raise ValueError(f"{self._name} has no option {key}, all options {sorted(self._declared)}")
        allowed = self._declared[key][1]
        if allowed is INTS:
            if not (isinstance(value, list) and value and all(type(one) is int for one in value)):
                raise ValueError(f"{self._name}.{key} must be {INTS}, not {value!r}")
        elif allowed is not ANY and value not in allowed:
            raise ValueError(f"{value!r} not in optional list {allowed}")
        self._values[key] = value


class CompilerConfig(Options):
    """torchair.CompilerConfig, as far as aclgraph ("reduce-overhead") mode has options."""

    def __init__(self):
        switch = (False, [False, True])
        static_kernel = {
            "_aclnn_static_shape_kernel": switch,
            "_aclnn_static_shape_kernel_build_dir": (None, ANY),
            "_aclnn_static_shape_kernel_sym_value_range": (None, INTS),
            "_aclnn_static_shape_kernel_sym_index": (0, ANY),
        }
        declared = {
            "mode": ("max-autotune", ["max-autotune", "reduce-overhead"]),
            "debug": Options("debug", {"run_eagerly": switch}),
            "experimental_config": Options("experimental_config", {"aclgraph": Options("aclgraph", static_kernel)}),
        }
        super().__init__("CompilerConfig", declared)


class Torchair(types.ModuleType):
    """The module: its two documented entry points, and what it was asked for."""

    def __init__(self):
        super().__init__("torchair")
        self.CompilerConfig = CompilerConfig
        self.configs = []
        self.compiled = 0

    def get_npu_backend(self, *, compiler_config):
        self.configs.append(compiler_config)

        def backend(graph, example_inputs):
            self.compiled += 1
            return graph.forward

        return backend


def install():
    """Makes `import torchair` find the stand-in; returns it."""
    module = sys.modules["torchair"] = Torchair()
    return module
