"""One Finding type for all checks, and its output formats: text, JSON, GitHub, GitLab, SARIF, JUnit."""
