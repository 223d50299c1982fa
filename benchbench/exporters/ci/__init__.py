"""What CI services and other benchmark tools read of a run: a file per format."""
