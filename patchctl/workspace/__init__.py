"""Workspaces: trees on disk, changed whole or not at all, with a journal, a state and a lock; and taken back or mended."""
