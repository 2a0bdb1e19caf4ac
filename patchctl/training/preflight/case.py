"""What the checks look at: a machine, the recipe that is to run on it, and what the distribution says of both."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from patchctl.doctor.runtime import info_version
from patchctl.language import message
from patchctl.manifest.load import Loaded
from patchctl.manifest.types import Practice, Requirement
from patchctl.requirements.sets import NamedSet
from patchctl.training.models import Model, PublishedModel, UnknownModel, read_model
from patchctl.training.preflight import machine as m
from patchctl.training.recipes.conditions import Facts, true_of
from patchctl.training.recipes.resolve import DEVICES, NODES, PER_NODE, RecipeRun
from patchctl.training.recipes.rules import Switch, facts_of
from patchctl.training.recipes.types import Rules

MEAN_TOKENS = 7419
"""The mean of prompt and answer in the GRPO run of 235B that a document linked from 002 describes (73.7 and 7,345)."""


@dataclass(frozen=True)
class Case:
    """One look. `published` is the table's model of the profile, by name; `mean_tokens` what the user expects of a sequence;
    `stacks` the profile's, by upstream; `packages` the set of its requirements."""

    machine: m.Machine
    run: RecipeRun
    wanted: Mapping[str, str]
    requirements: Mapping[str, Requirement]
    rules: Loaded[Rules] | None = None
    practice: Practice | None = None
    switches: Sequence[Switch] = ()
    published: tuple[str, PublishedModel] | None = None
    mean_tokens: int = MEAN_TOKENS
    stacks: Mapping[str, str] = field(default_factory=dict)
    packages: NamedSet | None = None

    @functools.cached_property
    def facts(self) -> Facts:
        """The recipe's values, with the framework's defaults behind them."""
        return facts_of(self.run, self.all_rules)

    @property
    def all_rules(self) -> Rules:
        """The rules; none where the distribution keeps none."""
        return self.rules.value if self.rules else Rules(1, {})

    @functools.cached_property
    def smi(self) -> m.Smi | None:
        """What npu-smi said."""
        text = self.machine.text(m.NPU_SMI)
        return None if text is None else m.smi(text)

    @property
    def driver(self) -> str | None:
        """The driver's version by its file; where that is not mounted, by npu-smi."""
        text = self.machine.text(m.DRIVER)
        return info_version(text) if text else self.smi.version if self.smi else None

    @functools.cached_property
    def environment(self) -> dict[str, str] | None:
        """The machine's own variables; None where they are not known."""
        found = self.machine.data(m.ENVIRONMENT)
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else None

    @functools.cached_property
    def in_effect(self) -> dict[str, str]:
        """The variables of a run: the machine's, and over them the recipe's, as `eval "$(patchctl recipe env ...)"` leaves them."""
        own = {k: v.value for k, v in self.run.environment.items() if v.path is None}
        return {**(self.environment or {}), **own}

    @property
    def model_config(self) -> Any:
        """The model's own config.json, else the table's; None where there is neither."""
        config = self.machine.data(m.CONFIG)
        return config if config is not None else self.published[1].config if self.published else None

    @property
    def sequence(self) -> int:
        """Tokens of the longest prompt and response together; 0 where they are not said."""
        lengths = self.number("data.max_prompt_length"), self.number("data.max_response_length")
        return sum(lengths) if None not in lengths else 0  # type: ignore[arg-type]

    @functools.cached_property
    def model(self) -> Model | UnknownModel | None:
        """The model by its configuration; None where there is none."""
        config = self.model_config
        if config is None:
            return None
        try:
            return read_model(config)
        except (UnknownModel, AttributeError, TypeError) as error:
            return error if isinstance(error, UnknownModel) else UnknownModel(message("config.json is no object"))

    @property
    def model_source(self) -> str:
        """Where the model's sizes come from."""
        if self.machine.data(m.CONFIG) is not None:
            return message("its config.json")
        if self.published is None:
            return message("nowhere")
        return message("{what}, {more}", what="manifests/models.yaml", more=self.published[0])

    @property
    def nodes(self) -> int:
        return int(self.run.sizes[NODES].value)

    @property
    def devices_per_node(self) -> int:
        return int(self.run.sizes[PER_NODE].value)

    @property
    def devices(self) -> int:
        return int(self.run.sizes[DEVICES].value)

    @property
    def apart(self) -> bool:
        """Whether engines have devices of their own."""
        return self.run.engine_nodes > 0

    def is_of(self, upstream: str, versions: str) -> bool:
        """Whether the profile's stack of an upstream is of such a version; one whose pin has none is not."""
        return true_of({upstream: versions}, self.run.versions)

    def text(self, key: str) -> str | None:
        """The value of a key of the configuration, or of `env.NAME`."""
        return self.facts.text(key)

    def number(self, key: str) -> int | None:
        """The same, where it is a whole number."""
        text = self.facts.text(key)
        return int(text) if text is not None and text.lstrip("-").isdecimal() else None

    def on(self, key: str) -> bool:
        """Whether a key is true."""
        return self.facts.on(key)

    def off(self, key: str) -> bool:
        """Whether a key is false; one that no one sets is not."""
        return (self.text(key) or "").lower() == "false"

    def path(self, name: str) -> str | None:
        """Where a path of the recipe lies: by --path, by its variable, or by its default."""
        parameter = self.run.paths[name]
        return self.run.given.paths.get(name) or (self.environment or {}).get(parameter.variable) or parameter.default

    def there(self, path: str) -> Mapping[str, Any] | None:
        """What lies at a path: facts of it, nothing for nothing there, None where nobody looked."""
        found = self.machine.data(m.PATHS)
        if not isinstance(found, dict) or path not in found:
            return None
        there = found[path]
        if not isinstance(there, dict):
            return {}
        return there if isinstance(there.get("bytes"), int) and isinstance(there.get("kind"), str) else None
