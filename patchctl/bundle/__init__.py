"""Bundles: one file with everything that a profile needs, for machines that reach no network."""
