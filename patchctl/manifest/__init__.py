"""Manifests: their types, a loader that keeps positions, cross-checks, stack locks, and the distribution as a whole."""
