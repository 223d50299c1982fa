"""Transfers between host and device and between devices, and programs that overlap them with work."""
