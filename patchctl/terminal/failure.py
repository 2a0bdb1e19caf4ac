"""How errors look: a message on standard error, or a JSON object on standard output."""

from __future__ import annotations

import json
import sys

from patchctl.errors import PatchctlError
from patchctl.terminal.text import visible


def render_error(error: PatchctlError, *, as_json: bool, program: str = "patchctl") -> None:
    """Print an error of `program`, patchctl or a script. Untrusted text is escaped."""
    if as_json:
        print(json.dumps({"schema": "patchctl.error/1", "error": error.as_json()}, indent=2, ensure_ascii=True))
    print(f"{program}: {visible(str(error))}", file=sys.stderr)
    if error.hint:
        print(f"  try: {visible(error.hint)}", file=sys.stderr)
