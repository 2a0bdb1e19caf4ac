"""What manifests/models.yaml holds: public facts of the models that profiles train, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from patchctl.doc import Doc
from patchctl.manifest.types import Address, Distributed, FormatVersion, Name, Text, Value, Word


@dataclass(frozen=True)
class PublishedModel:
    """One model as it is published."""

    profiles: Annotated[list[Name], Doc("The profiles that train it.")]
    address: Annotated[Address, Doc("Where it is published.")]
    config: Annotated[dict[Word, Value], Doc("The keys of its config.json that its size follows from.")]
    bytes: Annotated[Value, Doc("The size of its weights as they are downloaded.")]
    source: Annotated[Text, Doc("Where the figures stand.")]
    note: Annotated[Text | None, Doc("What a run changes of it.")] = None
    recipes: Annotated[
        list[Name], Doc("The recipes of these profiles that train it; all that no other model names, without.")
    ] = field(default_factory=list)


@dataclass(frozen=True)
class Models:
    """manifests/models.yaml: what preflight computes with while the model itself is not at hand."""

    schema: FormatVersion
    models: Annotated[dict[Distributed, PublishedModel], Doc("The models by name.")] = field(default_factory=dict)
