"""Findings, and what produces them. Nothing here prints, and nothing here writes."""
