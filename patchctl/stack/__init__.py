"""A stack as a function from base and patches to commits; its selection, plan, result cache, export and lock."""
