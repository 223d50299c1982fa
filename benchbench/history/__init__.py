"""Stored runs over time: where the level of a case changed."""
