"""The gate: accepted sessions, what a run shows against them, a second look, exit codes."""
