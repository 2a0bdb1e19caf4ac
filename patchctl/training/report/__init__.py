"""What the verbs of training print: text and JSON of what they are given. Computes nothing."""
