"""Findings, results and progress as people and machines read them."""
