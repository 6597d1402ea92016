"""The page docs/course/by-hand.md: every number of the example in minigpt/course/by_hand.py."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minigpt.course.by_hand import COMPONENTS, W_K, W_Q, W_V, WORDS, Matrix, X


@dataclass(frozen=True)
class Steps:
    """All intermediate values of the example, each with a row for each word."""

    q: Matrix
    k: Matrix
    v: Matrix
    scores: Matrix
    """q·k of each word with itself and with the words before it. The next three fields have the same layout."""
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


PAGE = """# One head by hand

Compute the attention of four words with pencil, paper and a calculator. The formula is

    attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

The tokens here are words. minigpt's are characters or bytes, but the arithmetic is the same.

## 1. The words as vectors

Each word has five components. A model learns the components, and they have no names. Here each
component answers a question: is this word an article, an adjective, a noun, a color, an animal?

{x}

## 2. Three matrices

Each matrix has a row for each component of a word. To multiply a word by a matrix, add up the rows
of its components that are 1.

W_Q says what a word looks for. A noun looks for articles and, twice as much, for adjectives. An
animal looks for colors.

{w_q}

W_K says what a word offers. An adjective counts twice.

{w_k}

W_V says what a word passes on.

{w_v}

## 3. Queries, keys and values

"fox" is a noun and an animal. Its query is the third plus the fifth row of W_Q:

    q(fox) = {noun} + {animal} = {q_fox}

**Queries**, q = x W_Q:

{q}

**Keys**, k = x W_K:

{k}

**Values**, v = x W_V:

{v}

## 4. Scores

The score of a query and a key is their dot product. For "fox" and "brown":

    q(fox) · k(brown) = {products} = {score}

A word may look only at itself and at earlier words. The mask hides the rest, shown as dashes.

{scores}

## 5. Scale

Queries and keys have d_k = 5 components. Divide each score by √5 = {root}:

{scaled}

## 6. Softmax

Take e to the power of each scaled score. For "fox" and "brown", e^{brown_scaled} =
{brown_exponential}. The last column is the sum of the row.

{exponentials}

Divide each number by the sum of its row. For "fox" and "brown", {brown_exponential} / {fox_sum} =
{brown_weight}. Now each row sums to 1.

{weights}

"fox" gives more than half of its attention to "brown". "The" sees only itself.

## 7. Output

The output is the sum of the values, each multiplied by its weight. The adjective component of "fox":

    {sum}

{outputs}

The vector of "fox" was {x_fox}. The largest components of its output come from the words
before it: the color and the adjective.

Your numbers may differ by 1 in the last digit, because the page rounds only what it prints.

## Check it with NumPy

```python
{code}
```

## Try

Predict first. Then compute, or change the code.

1. Which weights change if "brown" loses its color, the fourth component of x?
2. Which rows of the outputs change if there is no mask?
3. Replace √5 by 1. Does "fox" give more or less weight to "brown"?

<details markdown><summary>Solutions</summary>

1. Only those of "fox": no other word looks for colors, and "brown" sees no animal. They become
   {without_color}: "quick" and "brown" now have the same vector.
2. All but that of "fox", which is the last word and sees all words anyway.
3. More: {unscaled} instead of {brown_weight}. Larger scores make the softmax sharper.

</details>
"""
CODE = """import numpy as np

x = np.array({x})
w_q = np.array({w_q})
w_k = np.array({w_k})
w_v = np.array({w_v})

q, k, v = x @ w_q, x @ w_k, x @ w_v
scores = q @ k.T / np.sqrt(5)
scores[np.triu_indices(4, 1)] = -np.inf  # the mask
weights = np.exp(scores)
weights /= weights.sum(axis=1, keepdims=True)
print((weights @ v).round(3))"""


def number(value: float) -> str:
    """Format an integer as it is, NaN as a dash, and other numbers with three decimals."""
    if math.isnan(value):
        return "–"
    return f"{value:.0f}" if value == int(value) else f"{value:.3f}"


def vector(values: Sequence[float]) -> str:
    return f"[{', '.join(map(number, values))}]"


def table(rows: Matrix, names: Sequence[str], columns: Sequence[str]) -> str:
    """Return a Markdown table. Cells that the mask hides are dashes."""
    lines = [f"| | {' | '.join(columns)} |", "|---" + "|--:" * len(columns) + "|"]
    for name, row in zip(names, rows, strict=True):
        cells = [*map(number, row), *["–"] * (len(columns) - len(row))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    """Return docs/course/by-hand.md."""
    steps = compute()
    fox, brown = WORDS.index("fox"), WORDS.index("brown")
    no_color = [[*row[:3], 0, row[4]] for row in X]
    matrices = {
        name: table(matrix, COMPONENTS, COMPONENTS) for name, matrix in {"w_q": W_Q, "w_k": W_K, "w_v": W_V}.items()
    }
    vectors = {name: table(getattr(steps, name), WORDS, COMPONENTS) for name in ("q", "k", "v")}
    pairs = {name: table(getattr(steps, name), WORDS, WORDS) for name in ("scores", "scaled", "weights")}
    sums = [[*row, *[math.nan] * (4 - len(row)), sum(row)] for row in steps.exponentials]
    terms = zip(steps.weights[fox], [row[1] for row in steps.v], strict=True)
    products = zip(steps.q[fox], steps.k[brown], strict=True)
    return PAGE.format(
        x=table(X, WORDS, COMPONENTS),
        **matrices,
        **vectors,
        **pairs,
        exponentials=table(sums, WORDS, [*WORDS, "sum"]),
        outputs=table(steps.outputs, WORDS, COMPONENTS),
        noun=vector(W_Q[2]),
        animal=vector(W_Q[4]),
        q_fox=vector(steps.q[fox]),
        products=" + ".join(f"{number(a)}·{number(b)}" for a, b in products),
        score=number(steps.scores[fox][brown]),
        root=number(math.sqrt(5)),
        brown_scaled=number(steps.scaled[fox][brown]),
        brown_exponential=number(steps.exponentials[fox][brown]),
        fox_sum=number(sum(steps.exponentials[fox])),
        brown_weight=number(steps.weights[fox][brown]),
        sum=" + ".join(f"{number(a)}·{number(b)}" for a, b in terms) + f" = {number(steps.outputs[fox][1])}",
        x_fox=vector(X[fox]),
        without_color=vector(compute(no_color).weights[fox]),
        unscaled=number(compute(divisor=1).weights[fox][brown]),
        code=CODE.format(x=X, w_q=W_Q, w_k=W_K, w_v=W_V),
    )
