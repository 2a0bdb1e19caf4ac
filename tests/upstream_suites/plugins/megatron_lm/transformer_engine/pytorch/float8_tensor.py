"""Megatron asks of every parameter whether it is one of these."""


class Float8Tensor:
    """None is ever made: there is no FP8 here."""
