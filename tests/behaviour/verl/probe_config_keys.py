"""Probe: the keys of verl's configurations, as scripts/config_keys.py lists them. Usage: probe_config_keys.py VERL."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
import config_keys

print(json.dumps(list(config_keys.lines(Path(sys.argv[1]).resolve()))))
