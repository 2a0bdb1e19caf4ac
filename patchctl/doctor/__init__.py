"""What this machine lacks, as findings. Nothing is installed, downloaded or changed.

An error is something missing, and stops where patchctl itself needs it.
"""
