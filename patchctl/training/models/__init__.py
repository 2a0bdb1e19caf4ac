"""What trained models are: their published sizes, and the parameters counted from a configuration."""
