"""A stack as a function: base and patches in, commits and trees out; its plan, its cached results, its export, its lock."""
