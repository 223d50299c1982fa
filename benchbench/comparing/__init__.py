"""Two or more runs, or two interleaved sides: matched, tested, in words."""
