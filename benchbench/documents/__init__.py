"""What a verb answers, as text and tables."""
