"""Single operations, such as a product or a convolution, a file per family."""
