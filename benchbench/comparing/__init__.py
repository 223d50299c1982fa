"""Two or more runs, or two sides measured in turn: matched, tested, in words."""
