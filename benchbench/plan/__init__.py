"""Suites become cases."""
