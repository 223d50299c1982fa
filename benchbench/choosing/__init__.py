"""Comparison of hardware, from the runs of several machines."""
