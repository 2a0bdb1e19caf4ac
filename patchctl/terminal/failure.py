"""How errors look: a message on standard error, or a JSON object on standard output."""

from __future__ import annotations

import json
import sys

from patchctl.errors import PatchctlError
from patchctl.language.messages import Translatable, message, translated
from patchctl.terminal.text import fitted, visible


def render_error(error: PatchctlError, *, as_json: bool, program: str = "patchctl") -> None:
    """Print an error of `program`, patchctl or a script. Untrusted text is escaped."""
    if as_json:
        print(json.dumps({"schema": "patchctl.error/1", "error": error.as_json()}, indent=2, ensure_ascii=True))
    print(fitted(f"{program}: {visible(error.text(translated))}", sys.stderr), file=sys.stderr)
    if error.hint:
        hint = message("try: {todo}", todo=error.hint) if isinstance(error.hint, Translatable) else f"try: {error.hint}"
        print(fitted(f"  {visible(translated(hint))}", sys.stderr), file=sys.stderr)
