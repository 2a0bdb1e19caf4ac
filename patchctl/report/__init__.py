"""What verbs print: text and JSON of the results that they are given. Computes nothing."""
