"""The parent's side of a worker process."""
