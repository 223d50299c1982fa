"""Stored runs reduced to what histories and comparisons of hardware need, and a cache of that."""
