"""Measurement of one process: warm-up, block size and stop rule, with an injected timer."""
