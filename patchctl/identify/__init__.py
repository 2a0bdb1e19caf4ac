"""Tells which pin a folder is, by blob ids: version strings lie in published images. Reads only; needs no git."""
