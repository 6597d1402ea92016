"""Benchmarks that compare minigpt with alternatives: `train`, `sample` and `data`."""
