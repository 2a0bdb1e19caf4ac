"""A pytest plugin (-p): Megatron-LM's own tests on one CPU at core_v0.16.0, as megatron_lm_plugin has them at core_v0.12.1.

Its stand-in for Transformer Engine lacks what core_v0.16.0 imports. Upstream does without the package when it is not installed,
and so it is here; what asks for its layers fails or is skipped on both sides. The same goes for triton, but for one module.
"""

import sys
from pathlib import Path

sys.modules["transformer_engine"] = None  # an import of it raises ImportError
sys.path.append(str(Path(__file__).resolve().parents[1] / "megatron_lm"))

import megatron_lm_plugin  # noqa: E402  (found through the line above)
import torch._inductor.runtime.triton_compat  # noqa: E402  (torch has to have found no triton before the names are there)
import triton_names  # noqa: E402  (megatron_lm_plugin has brought its folder)


def _import_kernels():
    """megatron.training imports them whether there is a triton or not; nothing else may find one."""
    import megatron.core.transformer.transformer_layer

    triton_names.install()
    import megatron.core.transformer.custom_layers.batch_invariant_kernels  # noqa: F401

    for name in [one for one in sys.modules if one.partition(".")[0] == "triton"]:
        del sys.modules[name]


def _have_no_version():
    """Test modules ask for a version of Transformer Engine at import, in marks; upstream compares None without it."""
    import megatron.core.utils

    megatron.core.utils.is_te_min_version = lambda *args, **settings: False


assert megatron_lm_plugin and torch._inductor  # imported for what they do
_import_kernels()
_have_no_version()
