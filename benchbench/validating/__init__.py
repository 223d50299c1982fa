"""Another reader of what is stored, which shares no code with the one that writes it."""
