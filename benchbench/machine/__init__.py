"""What the machine is, and what happened on it while measuring."""
