"""Warm-up, block size, stop rule: when to read the clock, which is passed in."""
