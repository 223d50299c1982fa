"""Programs of networks, a file per framework: inference, and a training step."""
