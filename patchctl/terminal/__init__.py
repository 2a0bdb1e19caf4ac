"""Text as it reaches a terminal, a log or a page: made safe, with progress beside it. Knows nothing of what it shows."""
