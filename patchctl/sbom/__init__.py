"""Bills of materials: what a profile consists of, and its forms CycloneDX and SPDX.

The same distribution gives the same bytes: serial number and time come from the content, never from the clock.
"""
