"""Bundles: one file with everything a profile needs, for machines without a network."""
