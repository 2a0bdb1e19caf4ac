"""A new release from an older one."""
