"""Networks: inference, and a step of training; a file per network."""
