"""The loop that makes records."""
