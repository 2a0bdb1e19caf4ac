"""The extension `training`: recipes, models and preflight. Nothing but `patchctl.__main__` imports it: `registration` says what it adds."""
