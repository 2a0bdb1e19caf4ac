"""Norms and linear layers with the parameters, names and attributes of Transformer Engine's."""

from contextlib import nullcontext

import torch
from torch.nn.functional import layer_norm, linear


class LayerNorm(torch.nn.Module):
    """Layer normalization; with `zero_centered_gamma` the weight is stored without its 1."""

    has_bias = True

    def __init__(
        self,
        hidden_size,
        eps=1e-5,
        sequence_parallel=False,
        params_dtype=None,
        zero_centered_gamma=False,
        device="cpu",
        **unused,
    ):
        super().__init__()
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        make = {"dtype": params_dtype, "device": device}
        self.weight = torch.nn.Parameter((torch.zeros if zero_centered_gamma else torch.ones)(hidden_size, **make))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, **make)) if self.has_bias else None
        for parameter in self.parameters():
            parameter.sequence_parallel = sequence_parallel

    def forward(self, inputs):
        return normalized(inputs, self.weight, self.bias, self.eps, self.zero_centered_gamma)


class RMSNorm(LayerNorm):
    """Root mean square normalization, which has no bias."""

    has_bias = False


def normalized(inputs, weight, bias, eps, zero_centered_gamma):
    """Layer normalization where there is a bias, else by the root mean square; computed in float32 as TE does."""
    scale = weight.float() + 1 if zero_centered_gamma else weight.float()
    values = inputs.float()
    if bias is not None:
        return layer_norm(values, scale.shape, scale, bias.float(), eps).to(inputs.dtype)
    return (values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps) * scale).to(inputs.dtype)


class _Parallel(torch.nn.Module):
    """What TE's linear layers have in common: the parameters of this rank, and an extra state without FP8."""

    def __init__(
        self,
        in_features,
        out_features,
        sequence_parallel=False,
        tp_size=1,
        init_method=None,
        bias=True,
        return_bias=False,
        parallel_mode=None,
        **settings,
    ):
        super().__init__()
        self.init_method, self.use_bias, self.return_bias = init_method, bias, return_bias
        divisor = tp_size if parallel_mode else 1
        self.in_features = in_features // (divisor if parallel_mode == "row" else 1)
        self.out_features = out_features // (divisor if parallel_mode == "column" else 1)
        self.sequence_parallel, self.tp_size, self.parallel_mode = sequence_parallel, tp_size, parallel_mode
        self.make = {"dtype": settings.get("params_dtype"), "device": settings.get("device", "cpu")}
        self.get_rng_state_tracker = settings.get("get_rng_state_tracker")
        self.rng_tracker_name = settings.get("rng_tracker_name")
        self.fp8_meta = {"fp8_checkpoint": False}
        self.fp8 = self.fp8_calibration = False

    def _add(self, suffix):
        weight = torch.nn.Parameter(torch.empty(self.out_features, self.in_features, **self.make))
        self.register_parameter(f"weight{suffix}", weight)
        with self._fork():
            if self.init_method is None:
                torch.nn.init.normal_(weight, std=0.023)
            else:
                self.init_method(weight)
        _mark(weight, 1 if self.parallel_mode == "row" else 0)
        parameter = torch.nn.Parameter(torch.zeros(self.out_features, **self.make)) if self.use_bias else None
        self.register_parameter(f"bias{suffix}", parameter)
        if parameter is None:
            return
        if self.parallel_mode == "row":
            parameter.sequence_parallel = self.sequence_parallel
        elif self.parallel_mode == "column":
            _mark(parameter, 0)

    def _fork(self):
        if self.get_rng_state_tracker is None:
            return nullcontext()
        tracker = self.get_rng_state_tracker()
        return tracker.fork(self.rng_tracker_name) if self.rng_tracker_name else tracker.fork()

    def _product(self, inputs, weight, bias):
        """The product with what it moves between tensor parallel ranks, for which Megatron has functions of its own."""
        if self.tp_size == 1 or self.parallel_mode is None:
            return linear(inputs, weight, bias)
        import megatron.core.tensor_parallel.mappings as mappings

        if self.parallel_mode == "column":
            if self.sequence_parallel:
                inputs = mappings.gather_from_sequence_parallel_region(inputs)
            else:
                inputs = mappings.copy_to_tensor_model_parallel_region(inputs)
            return linear(inputs, weight, bias)
        out = linear(inputs, weight)
        if self.sequence_parallel:
            out = mappings.reduce_scatter_to_sequence_parallel_region(out)
        else:
            out = mappings.reduce_from_tensor_model_parallel_region(out)
        return out if bias is None else out + bias

    def init_fp8_metadata(self, num_gemms=1):
        """Nothing to prepare: there is no FP8."""

    def get_extra_state(self):
        """None, as TE keeps it when nothing was calibrated for FP8."""

    def set_extra_state(self, state):
        if state is not None:
            raise NotImplementedError("the stand-in for Transformer Engine has no FP8")


class Linear(_Parallel):
    """One linear layer; its bias is returned and not added when `return_bias` is set."""

    def __init__(self, in_features, out_features, **settings):
        super().__init__(in_features, out_features, **settings)
        self._add("")

    def forward(self, inp, is_first_microbatch=None):
        return self._result(inp)

    def _result(self, inputs):
        if self.return_bias:
            return self._product(inputs, self.weight, None), self.bias
        return self._product(inputs, self.weight, self.bias)


class LayerNormLinear(Linear):
    """A norm and a linear layer, whose parameters lie in one module."""

    def __init__(
        self, in_features, out_features, eps=1e-5, normalization="LayerNorm", zero_centered_gamma=False, **settings
    ):
        torch.nn.Module.__init__(self)
        make = {"dtype": settings.get("params_dtype"), "device": settings.get("device", "cpu")}
        start = torch.zeros if zero_centered_gamma else torch.ones
        norms = {"layer_norm_weight": torch.nn.Parameter(start(in_features, **make)), "layer_norm_bias": None}
        if normalization == "LayerNorm":
            norms["layer_norm_bias"] = torch.nn.Parameter(torch.zeros(in_features, **make))
        if settings.pop("return_layernorm_output", False):
            raise NotImplementedError("the stand-in for Transformer Engine does not return the norm's output")
        super().__init__(in_features, out_features, **settings)
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        for name, parameter in norms.items():
            self.register_parameter(name, parameter)
            if parameter is not None:
                parameter.sequence_parallel = self.sequence_parallel

    def forward(self, inp, is_first_microbatch=None):
        norm = (self.layer_norm_weight, self.layer_norm_bias, self.eps, self.zero_centered_gamma)
        return self._result(normalized(inp, *norm))


class GroupedLinear(_Parallel):
    """As many linear layers as there are experts on this rank; each takes `m_splits[i]` rows of the input."""

    def __init__(self, num_gemms, in_features, out_features, **settings):
        super().__init__(in_features, out_features, **settings)
        self.num_gemms = num_gemms
        for number in range(num_gemms):
            self._add(str(number))

    def forward(self, inp, m_splits, is_first_microbatch=None):
        flat = inp.reshape(-1, inp.shape[-1])
        weights, biases = (
            [getattr(self, f"{kind}{n}", None) for n in range(self.num_gemms)] for kind in ("weight", "bias")
        )
        added = [None] * self.num_gemms if self.return_bias else biases
        parts = zip(flat.split(list(m_splits)), weights, added, strict=True)
        out = torch.cat([self._product(rows, weight, bias) for rows, weight, bias in parts])
        out = out.view(*inp.shape[:-1], -1)
        return (out, biases) if self.return_bias else out


def _mark(parameter, dimension):
    parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dimension, 1
