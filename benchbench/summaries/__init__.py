"""Summaries of stored runs for histories and comparisons of hardware, and a cache of them."""
