"""The verbs of this wing: parse, call, render."""
