"""Probe: how an entry module ends. Usage: probe_entry.py MODULE OVERRIDE... Prints its exit status and all its output.

It runs in verl's own folder, where `recipe` can be imported.
"""

import json
import os
import subprocess
import sys

import verl

tree = os.path.dirname(os.path.dirname(os.path.abspath(verl.__file__)))
command = [sys.executable, "-m", *sys.argv[1:], f"hydra.run.dir={os.getcwd()}/hydra"]
ended = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(json.dumps({"status": ended.returncode, "output": ended.stdout}))
