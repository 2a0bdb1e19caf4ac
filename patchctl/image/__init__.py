"""Container images as files: reads an image's labels and trees, and verifies them, without a container engine."""
