"""patchctl completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "patchctl"
# The variable by which the scripts ask the program for completions; click derives the same name from the program's.
VARIABLE = "_PATCHCTL_COMPLETE"


@click.command("completion")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell, to be sourced.

    \b
    bash: patchctl completion bash > ~/.local/share/bash-completion/completions/patchctl
    zsh:  patchctl completion zsh > a file _patchctl in a folder of $fpath
    fish: patchctl completion fish > ~/.config/fish/completions/patchctl.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the three names are click's own
    print(kind(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())
