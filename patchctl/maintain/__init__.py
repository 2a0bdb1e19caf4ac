"""What whoever looks after patches does with them, beside editing: beginning one, proving that each does what it says."""
