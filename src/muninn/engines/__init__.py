"""What runs a program: the eager loop, rounds over a batch, CUDA graphs."""
