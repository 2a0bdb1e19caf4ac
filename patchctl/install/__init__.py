"""Installs the trees of a workspace into a Python environment, as packages that pip knows and can uninstall."""
