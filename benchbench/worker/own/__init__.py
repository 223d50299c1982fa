"""A user's own model, where its file is executed: found, described, built, verified by its own float64."""
