"""Finds which pin a folder contains by blob ids, as version strings in images can be wrong. Only reads; no git."""
