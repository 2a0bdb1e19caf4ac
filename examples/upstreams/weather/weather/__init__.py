"""Reports of a weather station. Made up for the example: no such project exists."""
