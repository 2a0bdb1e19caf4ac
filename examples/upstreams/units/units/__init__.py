"""Conversions between units of measurement. Made up for the example: no such project exists."""
