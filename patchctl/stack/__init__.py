"""A stack as a function: base and patches in, commits and trees out; its plan, its memo, its export, its lock."""
