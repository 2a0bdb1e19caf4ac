"""What stands for a device on a machine without one; the other packages of this distribution are the stand-ins."""
