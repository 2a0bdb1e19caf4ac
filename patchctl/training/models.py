"""What trained models are: a language model's tensors, counted exactly from its config.json (Qwen2.5, Qwen3, Qwen3 MoE, DeepSeek V3), and
public facts of the models that profiles train, from manifests/models.yaml.

Counts are those of transformers' models, which a test builds and compares. Nothing of torch or transformers is imported.

Like recipes, manifests/models.yaml is no part of `ManifestContent`: apply, verify and revert need no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from patchctl.check.series import Series
from patchctl.doc import Doc
from patchctl.errors import PatchctlError
from patchctl.findings import Report
from patchctl.language import joined, message
from patchctl.manifest.diagnostics import InvalidManifest, Problem, did_you_mean, quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import read
from patchctl.manifest.types import Address, Distributed, FormatVersion, Name, Text, Value, Word

Part = Literal["embedding", "head", "qkv", "output", "mlp", "experts", "shared experts", "gate", "norms"]
Split = Literal["vocabulary", "heads", "key heads", "columns", "experts", "whole"]

FAMILIES = ("qwen2", "qwen3", "qwen3_moe", "deepseek_v3")
_MOST_LAYERS = 10_000
# What transformers takes where config.json leaves a key out.
_DEFAULTS: Mapping[str, Any] = {
    "tie_word_embeddings": False,
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "first_k_dense_replace": 0,
    "n_shared_experts": 0,
}


# As transformers 5 writes what 4 wrote under the first name.
_RENAMED: Mapping[str, str] = {"num_experts": "num_local_experts"}


class UnknownModel(PatchctlError):
    """The configuration is of another family, or lacks something; says what."""


@dataclass(frozen=True)
class Latent:
    """DeepSeek's latent attention (MLA). `query_rank` None: queries are projected at once."""

    query_rank: int | None
    rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Experts:
    """A mixture of experts. `sizes` are per expert; `layers` how many layers have one."""

    count: int
    chosen: int
    width: int
    shared_width: int
    layers: int


@dataclass(frozen=True)
class Model:
    """What memory follows from. `latent` None: grouped query attention; `experts` None: a dense model."""

    layers: int
    hidden: int
    vocabulary: int
    tied: bool
    heads: int
    key_heads: int
    head: int
    width: int
    query_bias: bool
    query_norms: bool
    output_bias: bool
    latent: Latent | None = None
    experts: Experts | None = None

    @property
    def dense_layers(self) -> int:
        """Layers with an ordinary MLP."""
        return self.layers - (self.experts.layers if self.experts else 0)

    @property
    def parameters(self) -> int:
        """All of them; a head that is tied to the embedding is counted once."""
        return sum(t.parameters for t in tensors(self))


@dataclass(frozen=True)
class Tensor:
    """Tensors of one kind: `parameters` over all `layers` of them. `split` says what a parallel layout divides."""

    part: Part
    each: int
    layers: int
    split: Split

    @property
    def parameters(self) -> int:
        return self.each * self.layers


def read_model(config: Mapping[str, Any]) -> Model:
    """A model from the keys of its config.json; numbers may be written as text. Raises UnknownModel."""
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        known = joined(FAMILIES)
        raise UnknownModel(message("model_type is {family}, and only {known} are known", family=family, known=known))
    heads, hidden = _whole(config, "num_attention_heads"), _whole(config, "hidden_size")
    latent = _latent(config) if family == "deepseek_v3" else None
    bias = _truth(config, "attention_bias")
    return Model(
        layers=_layers(config),
        hidden=hidden,
        vocabulary=_whole(config, "vocab_size"),
        tied=_truth(config, "tie_word_embeddings"),
        heads=heads,
        key_heads=_whole(config, "num_key_value_heads"),
        head=_whole(config, "head_dim") if config.get("head_dim") and not latent else hidden // heads,
        width=_whole(config, "intermediate_size"),
        query_bias=family == "qwen2" or bias,
        query_norms=family.startswith("qwen3"),
        output_bias=bias and family != "qwen2",
        latent=latent,
        experts=_experts(config, family),
    )


def context_length(config: Any, *, scaled: bool) -> int | None:
    """How long a sequence verl lets a model have: max_position_embeddings, if `scaled` times the factor of a rope_scaling,
    which transformers 5 calls rope_parameters."""
    if not isinstance(config, Mapping):
        return None
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    try:
        most = _whole(config, "max_position_embeddings")
        by = float(scaling.get("factor", 1.0)) if scaled and isinstance(scaling, Mapping) and scaling else 1.0
        return int(most * by)
    except (UnknownModel, TypeError, ValueError, OverflowError):
        return None


def tensors(model: Model) -> Iterator[Tensor]:
    """Every tensor of the model, by kind."""
    words = model.vocabulary * model.hidden
    yield Tensor("embedding", words, 1, "vocabulary")
    if not model.tied:
        yield Tensor("head", words, 1, "vocabulary")
    yield from _latent_attention(model, model.latent) if model.latent else _grouped_attention(model)
    yield from _feed_forward(model)
    yield Tensor("norms", 2 * model.hidden, model.layers, "whole")
    yield Tensor("norms", model.hidden, 1, "whole")


def _grouped_attention(model: Model) -> Iterator[Tensor]:
    queries, keys = model.heads * model.head, model.key_heads * model.head
    rows = model.hidden + (1 if model.query_bias else 0)
    yield Tensor("qkv", rows * queries, model.layers, "heads")
    yield Tensor("qkv", rows * 2 * keys, model.layers, "key heads")
    yield Tensor("output", queries * model.hidden, model.layers, "heads")
    if model.output_bias:
        yield Tensor("output", model.hidden, model.layers, "whole")
    if model.query_norms:
        yield Tensor("norms", 2 * model.head, model.layers, "whole")


def _latent_attention(model: Model, latent: Latent) -> Iterator[Tensor]:
    queries = model.heads * (latent.nope + latent.rope)
    down = model.hidden * (latent.rank + latent.rope)
    norms = latent.rank
    if latent.query_rank is None:
        yield Tensor("qkv", model.hidden * queries, model.layers, "heads")
    else:
        down += model.hidden * latent.query_rank
        norms += latent.query_rank
        yield Tensor("qkv", latent.query_rank * queries, model.layers, "heads")
    yield Tensor("qkv", down, model.layers, "whole")
    yield Tensor("qkv", latent.rank * model.heads * (latent.nope + latent.value), model.layers, "heads")
    yield Tensor("output", model.heads * latent.value * model.hidden, model.layers, "heads")
    yield Tensor("norms", norms, model.layers, "whole")


def _feed_forward(model: Model) -> Iterator[Tensor]:
    if model.dense_layers:
        yield Tensor("mlp", 3 * model.hidden * model.width, model.dense_layers, "columns")
    experts = model.experts
    if experts is None:
        return
    yield Tensor("experts", experts.count * 3 * model.hidden * experts.width, experts.layers, "experts")
    yield Tensor("gate", model.hidden * experts.count, experts.layers, "whole")
    if experts.shared_width:
        yield Tensor("shared experts", 3 * model.hidden * experts.shared_width, experts.layers, "columns")


def _layers(config: Mapping[str, Any]) -> int:
    """More than any model has would be counted one by one."""
    layers = _whole(config, "num_hidden_layers")
    if layers > _MOST_LAYERS:
        what = message(
            "num_hidden_layers is {layers}; {most} at most are taken for a model", layers=layers, most=_MOST_LAYERS
        )
        raise UnknownModel(what)
    return layers


def _latent(config: Mapping[str, Any]) -> Latent:
    return Latent(
        None if config.get("q_lora_rank") in (None, "null") else _whole(config, "q_lora_rank"),
        _whole(config, "kv_lora_rank"),
        _whole(config, "qk_nope_head_dim"),
        _whole(config, "qk_rope_head_dim"),
        _whole(config, "v_head_dim"),
    )


def _experts(config: Mapping[str, Any], family: str) -> Experts | None:
    if family == "qwen3_moe":
        step = _whole(config, "decoder_sparse_step")
        alone = config.get("mlp_only_layers") or []
        if not isinstance(alone, list):
            raise UnknownModel(message("mlp_only_layers is {value}, and a list is needed", value=repr(alone)))
        layers = _layers(config)
        sparse = [i for i in range(layers) if i not in alone and (i + 1) % step == 0]
        count, shared, found = _whole(config, "num_experts"), 0, len(sparse)
    elif family == "deepseek_v3":
        count = _whole(config, "n_routed_experts")
        shared = _whole(config, "n_shared_experts", 0) * _whole(config, "moe_intermediate_size")
        found = _layers(config) - _whole(config, "first_k_dense_replace", 0)
    else:
        return None
    chosen, width = _whole(config, "num_experts_per_tok"), _whole(config, "moe_intermediate_size")
    return Experts(count, chosen, width, shared, found) if found > 0 else None


def _whole(config: Mapping[str, Any], key: str, least: int = 1) -> int:
    value = config.get(key, config.get(_RENAMED.get(key, key), _DEFAULTS.get(key)))
    text = "" if isinstance(value, (bool, float)) else str(value).strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= least):
        what = message(
            "{name} is {value}, and a whole number from {least} to a thousand million is needed",
            name=key,
            value=repr(value),
            least=least,
        )
        raise UnknownModel(what)
    return int(text)


def _truth(config: Mapping[str, Any], key: str) -> bool:
    return str(config.get(key, _DEFAULTS[key])).lower() == "true"


@dataclass(frozen=True)
class PublishedModel:
    """A model, as published."""

    profiles: Annotated[list[Name], Doc("Profiles that train it.")]
    address: Annotated[Address, Doc("URL that it is published at.")]
    config: Annotated[dict[Word, Value], Doc("The keys of its config.json that determine its size.")]
    bytes: Annotated[Value, Doc("Download size of its weights, in bytes.")]
    source: Annotated[Text, Doc("Source of the figures.")]
    note: Annotated[Text | None, Doc("What a training run changes about it.")] = None
    recipes: Annotated[
        list[Name],
        Doc("The recipes of these profiles that train it; if omitted, every recipe that no other model lists."),
    ] = field(default_factory=list)


@dataclass(frozen=True)
class Models:
    """manifests/models.yaml: the figures that preflight uses when the model itself is unavailable."""

    schema: FormatVersion
    models: Annotated[dict[Distributed, PublishedModel], Doc("Models, by name.")] = field(default_factory=dict)


FILE = Path("manifests") / "models.yaml"
SCHEMAS: dict[str, type] = {"models": Models}


def read_models(dist: Distribution) -> Models:
    """The table; empty where the distribution keeps none. Raises InvalidManifest with every fault."""
    path = dist.root / FILE
    if not path.exists():
        return Models(1)
    loaded = read(path, Models)
    problems: list[Problem] = []
    for name, model in loaded.value.models.items():
        for index, profile in enumerate(model.profiles):
            if profile not in dist.variants:
                what = f"no profile {quoted(profile)}{did_you_mean(profile, dist.variants)}"
                problems.append(loaded.positions.problem(("models", name, "profiles", index), what))
        try:
            read_model(model.config)
        except UnknownModel as error:
            problems.append(loaded.positions.problem(("models", name, "config"), str(error)))
        if not model.bytes.isdigit():
            problems.append(loaded.positions.problem(("models", name, "bytes"), "expected a whole number of bytes"))
    if problems:
        raise InvalidManifest(problems)
    return loaded.value


def check_models(dist: Distribution, series: Series, report: Report) -> None:
    """Adds the faults of the table, which nothing else loads before someone asks preflight."""
    read_models(dist)


def model_of(models: Models, profile: str, recipe: str | None = None) -> tuple[str, PublishedModel] | None:
    """The model that a recipe trains, with its name; without a recipe that of the profile."""
    of_profile = [(name, model) for name, model in models.models.items() if profile in model.profiles]
    named = [found for found in of_profile if recipe in found[1].recipes]
    return next(iter(named or [found for found in of_profile if not found[1].recipes]), None)
