"""Four words and three matrices: one head that is small enough for pencil and paper.

docs/course/by-hand.md prints this example, which scripts/by_hand.py computes.
"""

Matrix = list[list[float]]

WORDS = ("The", "quick", "brown", "fox")
COMPONENTS = ("article", "adjective", "noun", "color", "animal")
X: Matrix = [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 1, 0, 1]]
W_Q: Matrix = [[0, 0, 1, 0, 0], [1, 0, 1, 0, 0], [1, 2, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0]]
W_K: Matrix = [[1, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
W_V: Matrix = [[1, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 1, 0, 0], [0, -1, 0, 3, 1], [0, 0, 0, 0, 1]]
