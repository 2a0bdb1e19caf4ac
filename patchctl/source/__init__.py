"""Where trees come from: git, source distributions, and the cache of both."""
