"""Probe: what verl says to a configuration before Ray starts. Usage: probe_delta_refusals.py CASE... (a JSON list of overrides each)"""

import json
import sys

from entry_points import refused

print(json.dumps([refused(json.loads(case)) for case in sys.argv[1:]]))
