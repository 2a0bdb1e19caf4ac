"""Probe: what the entry points of verl say to a configuration before Ray starts. Usage: probe_router_replay_refusals.py CASE...

A CASE is a JSON list of overrides, of entry_points.py. Prints for each the error, null where the settings are taken.
"""

import json
import sys

from entry_points import refused

print(json.dumps([refused(json.loads(case)) for case in sys.argv[1:]]))
