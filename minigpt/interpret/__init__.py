"""What a trained model computes: activations, scores and phrases of heads, and comparisons."""
