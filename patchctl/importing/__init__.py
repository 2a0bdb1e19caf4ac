"""Brings foreign patches (mails, series, diffs) into a stack: read as `git am` reads them, applied exactly, written in our form."""
