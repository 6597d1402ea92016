"""Read and write runs and checkpoints, without torch."""
