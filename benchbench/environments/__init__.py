"""Python environments for backends: build, list and remove them, and choose interpreters."""
