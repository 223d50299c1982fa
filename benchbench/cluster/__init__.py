"""Measure a suite on every machine of a cluster. Each machine's run is stored here as its records arrive."""
