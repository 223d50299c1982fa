"""A network's programs, a framework each: inference, and a step of training."""
