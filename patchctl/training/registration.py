"""What training adds to patchctl: names alone, so that nothing of training is imported before it is called for."""

from __future__ import annotations

from patchctl.extension import Extension

_TRAINING = "patchctl.training"

EXTENSION = Extension(
    verbs={
        "recipe": ("List, show, compare and print training recipes.", f"{_TRAINING}.verbs.recipe:command"),
        "train": ("Check the machine, load the environment, and train a recipe.", f"{_TRAINING}.verbs.recipe:train"),
        "preflight": ("Check whether a machine can run a recipe.", f"{_TRAINING}.verbs.preflight:command"),
    },
    heading="Train",
    cluster_verbs=(f"{_TRAINING}.verbs.cluster:preflight",),
    manifests=frozenset({"recipes", "rules.yaml", "models.yaml", "coverage.yaml", "parameters.yaml"}),
    schemas=(
        f"{_TRAINING}.recipes.types:SCHEMAS",
        f"{_TRAINING}.models:SCHEMAS",
        f"{_TRAINING}.report.practice_pages:SCHEMAS",
    ),
    checks=(
        f"{_TRAINING}.recipes.check:check_recipes",
        f"{_TRAINING}.recipes.check:check_packages",
        f"{_TRAINING}.models:check_models",
        f"{_TRAINING}.report.practice_pages:check_practice",
    ),
    rules=(f"{_TRAINING}.recipes.check:RULES",),
    requirements=(f"{_TRAINING}.recipes.check:packages_of_recipes",),
    environments=(f"{_TRAINING}.verbs.cluster:environment_of_recipe",),
    recipes=(f"{_TRAINING}.report.recipes:recipe_rows",),
    complete_recipe=(f"{_TRAINING}.verbs.options:complete_recipe",),
    probe=(f"{_TRAINING}.preflight.live:look_here",),
    pages=(f"{_TRAINING}.report.practice_pages:pages",),
)
