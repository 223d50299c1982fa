"""One operation each: a product, a convolution, and the like."""
