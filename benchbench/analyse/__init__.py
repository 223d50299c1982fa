"""Derived values of records: metrics, rows, digests, plausibility, ceilings and prices."""
