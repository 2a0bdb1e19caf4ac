"""What a check says, and how people and machines read it: text, JSON, GitHub annotations, SARIF, JUnit."""
