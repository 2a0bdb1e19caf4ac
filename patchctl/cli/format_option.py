"""--format of the verbs that find something, and the one way to print what they found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from patchctl.cli.app import App, json_option

if TYPE_CHECKING:
    from patchctl.findings.formats import Shown
    from patchctl.terminal.style import Style


def format_option(printed: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--format and --json, given to the command as `output`; `printed` is what `json_option` takes."""
    choice = click.Choice(["text", "json", "github", "gitlab", "sarif", "junit"])
    told = "How findings are printed; docs/json.md has all of them."
    option = click.option("--format", "output", type=choice, default="text", show_default=True, help=told)

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def chosen(*args: Any, output: str, as_json: bool, **rest: Any) -> Any:
            return command(*args, output="json" if as_json else output, **rest)

        return option(json_option(printed)(chosen))

    return add


def print_findings(app: App, output: str, shown: Shown, data: Any, text: Callable[[Style], Iterable[str]]) -> None:
    """Print findings in the format that was asked for: `data` as JSON, `text` for people, `shown` for CI systems."""
    if output in ("text", "json"):
        app.emit(shown.verb, data, text, output == "json")
        return
    from patchctl.findings.formats import RENDERERS

    app.rest()
    print(RENDERERS[output](shown), end="")
