"""Manifests: what they hold (types), reading them with positions (load), all of them together (distribution)."""
