"""Whether a machine can run a recipe, as findings. Nothing is changed, but for caches that the user asks to be cleared.

live or recorded outputs -> Machine (texts) -> read (values) -> checks (findings). Checks are pure functions of a Machine, a
recipe and a profile, so that a recording from another machine gives what that machine would.
"""
