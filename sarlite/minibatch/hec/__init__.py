"""The historical embedding cache (DistGNN-MB 3.2): cached halo rows, and their pushes between ranks."""
