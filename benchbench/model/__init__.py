"""The nouns, as frozen data."""
