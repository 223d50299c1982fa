"""One network each: its inference, a step of its training."""
