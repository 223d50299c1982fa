"""What spoils measurements here, and what this machine can be measured to do."""
