"""Baselines, and the check of a run against them."""
