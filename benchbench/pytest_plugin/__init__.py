"""A user's function measured in a test."""
