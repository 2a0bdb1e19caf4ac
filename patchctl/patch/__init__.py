"""Patches as bytes: parsed strictly, applied in memory, written. Knows no git and no manifest."""
