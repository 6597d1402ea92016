"""Measures minigpt against what one would use instead: `train`, `sample` and `data`, each a comparison of `sides`."""
