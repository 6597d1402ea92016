"""Looking into a trained model: attention, head scores, a page to explore, and claims about attention to check."""
