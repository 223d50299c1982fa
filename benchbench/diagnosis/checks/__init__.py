"""Checks for conditions that distort measurements: a file per part of the machine."""
