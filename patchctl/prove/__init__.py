"""Runs a feature's tests on unpatched, patched and mutated trees, and begins a feature with templates of them."""
