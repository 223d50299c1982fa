"""Trace formats of profilers become spans."""
