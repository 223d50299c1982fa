"""Transfers between host and device, and programs that overlap them with work."""
