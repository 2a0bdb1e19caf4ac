"""Names the patch that a line, an edit in a workspace or a broken command comes from."""
