"""Hypothesis on a busy machine: a test case that waited for its turn is no fault of what it tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
