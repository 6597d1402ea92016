"""What a trained model computes: activations, statistics and phrases of heads, and comparisons."""
