"""The totals of a complete run: steps, checkpoints on disk, responses for training and for validation.

Counted as verl v0.6.0 does (trainer/ppo/ray_trainer.py; recipe/dapo/dapo_ray_trainer.py): the loader drops the last
incomplete batch of an epoch; checkpoint and validation happen every N steps and after the last one, and optionally a
validation before the first. The number of rows is a size of the recipe: `train_rows`, `validation_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from patchctl.doc import Doc
from patchctl.training.recipes.conditions import BadExpression, Facts
from patchctl.training.recipes.resolve import RecipeRun
from patchctl.training.recipes.rules import facts_of
from patchctl.training.recipes.types import Rules

TRAIN_ROWS, VALIDATION_ROWS, MEAN_LENGTH = "train_rows", "validation_rows", "mean_length"
_ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Totals:
    """Totals of a complete run; None if an input is missing."""

    steps: Annotated[int | None, Doc("number of training steps; null if the size of the data is unknown")]
    at_most: Annotated[
        bool, Doc("true if a step may take several batches, as dropped groups are filled up: `steps` is an upper bound")
    ]
    trained: Annotated[int | None, Doc("number of responses generated for training")]
    validations: Annotated[int | None, Doc("number of validations")]
    validated: Annotated[int | None, Doc("number of responses generated for validation")]
    written: Annotated[int | None, Doc("number of checkpoints written")]
    kept: Annotated[int | None, Doc("number of checkpoints kept")]
    checkpoint_bytes: Annotated[int | None, Doc("size of a checkpoint in bytes; null if the model is unknown")]

    @property
    def kept_bytes(self) -> Annotated[int | None, Doc("total size of the kept checkpoints, in bytes")]:
        return None if self.kept is None or self.checkpoint_bytes is None else self.kept * self.checkpoint_bytes


def totals_of(run: RecipeRun, rules: Rules, checkpoint_bytes: int | None = None) -> Totals:
    """Return the totals of a run. `checkpoint_bytes` is the size of a checkpoint, if the model is known."""
    facts = facts_of(run, rules)
    batch = _number(facts, "data.train_batch_size")
    # verl v0.9.0's v1 trainer counts steps by train_batch_size, and asks for prompts in place of groups that it drops.
    by_prompts = facts.on("trainer.use_v1")
    if not by_prompts:
        batch = _number(facts, "data.gen_batch_size") or batch
    steps = _steps(facts, batch)
    samples, again = _number(facts, f"{_ROLLOUT}.n"), _number(facts, f"{_ROLLOUT}.val_kwargs.n") or 1
    validations = _every(steps, _number(facts, "trainer.test_freq"))
    if validations is not None and facts.on("trainer.val_before_train"):
        validations += 1
    rows = _number(facts, VALIDATION_ROWS)
    written = _every(steps, _number(facts, "trainer.save_freq"))
    most = _number(facts, "trainer.max_actor_ckpt_to_keep") or 0
    kept = min((n for n in (written, most if most > 0 else None) if n is not None), default=None)
    return Totals(
        steps=steps,
        at_most=not by_prompts and facts.on("algorithm.filter_groups.enable"),
        trained=steps * batch * samples if steps is not None and batch and samples else None,
        validations=validations,
        validated=0 if validations == 0 else validations * rows * again if validations and rows else None,
        written=written,
        kept=kept,
        checkpoint_bytes=checkpoint_bytes,
    )


def mean_length(run: RecipeRun) -> int | None:
    """Return the mean length of prompt plus response that the recipe gives; None if it gives none."""
    size = run.sizes.get(MEAN_LENGTH)
    return None if size is None else int(size.value)


def _steps(facts: Facts, batch: int | None) -> int | None:
    if facts.on("trainer.val_only") and facts.on("trainer.val_before_train"):
        return 0  # the trainer ends after the validation before the first step
    said = _number(facts, "trainer.total_training_steps")
    rows, epochs = _number(facts, TRAIN_ROWS), _number(facts, "trainer.total_epochs")
    if rows is None or not batch or epochs is None:
        return said
    by_rows = rows // batch * epochs
    return by_rows if said is None else min(said, by_rows)


def _every(steps: int | None, frequency: int | None) -> int | None:
    """Return how often something happens that is due every N steps and after the last one."""
    if frequency is None or frequency <= 0:
        return 0
    return None if steps is None else -(-steps // frequency)


def _number(facts: Facts, name: str) -> int | None:
    try:
        found: Fraction = facts.number(name)
    except BadExpression:
        return None
    return found.numerator if found.denominator == 1 else None
