"""The wing of training: recipes, models, preflight and the practice. Nothing outside this folder imports it."""
