"""Fetches distributions from their repositories, for runs outside a clone."""
