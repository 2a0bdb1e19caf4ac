"""What `verify` finds of a distribution, of its sources and of a workspace, and the generated pages held against the disk."""
