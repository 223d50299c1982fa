"""What spoils measurements on this machine."""
