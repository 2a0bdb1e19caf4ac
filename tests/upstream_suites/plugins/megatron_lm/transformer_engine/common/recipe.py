"""Stands for transformer_engine.common.recipe: the classes that Megatron's wrapper derives from, without FP8."""


class DelayedScaling:
    """Megatron's TEDelayedScaling derives from it; there is no FP8 here."""

    def __init__(self, **settings):
        raise NotImplementedError("the stand-in for Transformer Engine has no FP8")
