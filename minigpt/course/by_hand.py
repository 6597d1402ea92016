"""One head by hand: the whole formula with numbers.

Four words, vectors of five components, one head with a mask: small enough for pencil and paper. The page
[One head by hand](../course/by-hand.md) prints every number of this example.
"""

import math
from dataclasses import dataclass

Matrix = list[list[float]]

WORDS = ("The", "quick", "brown", "fox")
COMPONENTS = ("article", "adjective", "noun", "color", "animal")
X: Matrix = [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 1, 0, 1]]
W_Q: Matrix = [[0, 0, 1, 0, 0], [1, 0, 1, 0, 0], [1, 2, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0]]
W_K: Matrix = [[1, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
W_V: Matrix = [[1, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 1, 0, 0], [0, -1, 0, 3, 1], [0, 0, 0, 0, 1]]


@dataclass(frozen=True)
class Steps:
    """All intermediate values of the example, each with a row for each word."""

    q: Matrix
    k: Matrix
    v: Matrix
    scores: Matrix
    """q·k of each word with itself and the words before it. So are the next three."""
    scaled: Matrix
    exponentials: Matrix
    weights: Matrix
    outputs: Matrix


def matmul(a: Matrix, b: Matrix) -> Matrix:
    """Return the matrix product a b."""
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def compute(x: Matrix = X, divisor: float = math.sqrt(5)) -> Steps:
    """Compute one head step by step, without torch. The scores are divided by `divisor`, normally √d_k."""
    q, k, v = (matmul(x, w) for w in (W_Q, W_K, W_V))
    columns = [list(column) for column in zip(*k, strict=True)]
    scores = [row[: i + 1] for i, row in enumerate(matmul(q, columns))]  # the mask: no later words
    scaled = [[score / divisor for score in row] for row in scores]
    exponentials = [[math.exp(score) for score in row] for row in scaled]
    weights = [[value / sum(row) for value in row] for row in exponentials]
    outputs = [matmul([row], v[: len(row)])[0] for row in weights]
    return Steps(q, k, v, scores, scaled, exponentials, weights, outputs)
