"""Puts the trees of a workspace into a Python environment, as packages that pip knows and can take away again."""
