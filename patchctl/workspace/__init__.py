"""Workspaces: applies stacks to trees on disk, all or none, under a lock and a journal; reverts, repairs and describes them."""
