"""Brings the patches of a stack to another revision of its upstream, one at a time."""
