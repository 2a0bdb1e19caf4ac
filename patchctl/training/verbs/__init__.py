"""The verbs of the extension `training`: parse, call, render."""
