"""Formats for CI services and other benchmark tools, one per file."""
