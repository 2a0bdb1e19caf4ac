"""The manifests of training that have a JSON Schema: their classes by name."""

from __future__ import annotations

from patchctl.training.models.published import Models
from patchctl.training.recipes.types import Recipe, Rules

SCHEMAS: dict[str, type] = {
    "recipe": Recipe,
    "rules": Rules,
    "models": Models,
}
