"""Profiles of steps, by operator."""
