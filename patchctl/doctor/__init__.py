"""Checks what this machine lacks, as findings. Installs, downloads and changes nothing.

What is missing is an error; the run fails if patchctl itself needs it.
"""
