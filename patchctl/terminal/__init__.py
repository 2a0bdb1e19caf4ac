"""Makes text safe for terminals, logs and pages, and shows progress. Knows nothing about its content."""
