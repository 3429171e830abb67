"""The correctness oracle: checks of graph kernels, layers and distributed runs in any framework."""
