"""Where the time of a step went, by operator."""
