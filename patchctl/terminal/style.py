"""Colours for output to people."""

from __future__ import annotations

from typing import Any

import click


class Style:
    """Colours, or none."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def __call__(self, text: str, **style: Any) -> str:
        return click.style(text, **style) if self._on else text

    def good(self, text: str) -> str:
        return self(text, fg="green")

    def bad(self, text: str) -> str:
        return self(text, fg="red", bold=True)

    def note(self, text: str) -> str:
        return self(text, fg="yellow")
