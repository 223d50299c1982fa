"""A run held against baselines."""
