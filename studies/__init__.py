"""Studies: programs that measure or simulate and print figures. Not tests; docs quote what they print."""
