"""What the documents of the practice name, and whether what we cite of them stands there."""
