"""Baselines, checks of a run against them, and the acceptance of runs."""
