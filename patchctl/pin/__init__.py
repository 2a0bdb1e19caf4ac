"""A new stack of an upstream: its pin, its generated files, and the runtime that upstream's own files name."""
