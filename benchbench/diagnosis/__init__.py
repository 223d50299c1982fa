"""Diagnose the machine: conditions that distort measurements, and its best rates."""
