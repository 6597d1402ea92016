"""Runs and checkpoints on disk, without torch."""
