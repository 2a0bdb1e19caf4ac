"""Probe: which texts Hydra parses as one value of an override. Usage: probe_hydra_grammar.py TEXTS, a JSON list. Prints a list of booleans."""

import json
import sys
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

PARSER = OverridesParser.create()


def parsed(text):
    try:
        return not PARSER.parse_override(f"key={text}").is_sweep_override()
    except HydraException:
        return False


print(json.dumps([parsed(text) for text in json.loads(Path(sys.argv[1]).read_text())]))
