"""Pytest plugin that measures functions in tests."""
