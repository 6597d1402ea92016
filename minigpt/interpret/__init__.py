"""Attention and head scores of a trained model: extraction, images, and exports."""
