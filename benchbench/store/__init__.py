"""Run folders, and what is read from and written to them."""
