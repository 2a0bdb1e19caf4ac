"""patchctl: versioned patch stacks for the frameworks that train large models with reinforcement learning on Ascend NPUs."""

__version__ = "2026.12.1"
