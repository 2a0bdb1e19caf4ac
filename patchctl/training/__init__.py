"""The wing of training: recipes, models and preflight. Nothing outside this folder imports it."""
