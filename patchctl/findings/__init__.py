"""One Finding for all that look at something, and how people and machines read it: text, JSON, GitHub, GitLab, SARIF, JUnit."""
