"""The HTML page that `minigpt inspect` writes: Python packs the data, JavaScript displays it."""
