"""Probe: what an interpreter with standins/patchctl_standins at its start makes of modules as they are imported."""

import importlib
import json
import os
import sys
import types

import patchctl_standins.at_start as at_start

FOLDER = os.environ["STANDIN_MODULES"]
calls = []
helper = types.ModuleType("helper")
helper.before = lambda: calls.append(["before", "watched" in sys.modules])
helper.after = lambda module: calls.append(["after", module.READY])
sys.modules["helper"] = helper
at_start.BEFORE["watched"], at_start.AFTER["watched"] = "helper:before", "helper:after"
sys.path.insert(0, FOLDER)

watched = importlib.import_module("watched")
importlib.import_module("watched")
print(
    json.dumps(
        {
            "calls": calls,
            "finders": sum(type(one).__name__ == "AfterImport" for one in sys.meta_path),
            "loader": type(watched.__spec__.loader).__name__,
        }
    )
)
