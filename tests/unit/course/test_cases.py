"""What `course check` accepts and refuses: the file of the course, with one part written in another way."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from course_pages import assembled

from minigpt.course.cases import CASES
from minigpt.course.comparison import difference
from minigpt.course.worker import check, run_file

Patch = tuple[int, str, str, str]
"""Chapter, right code, wrong code, and words of the problem."""

WRONG: dict[str, Patch] = {
    "targets not shifted": (
        5,
        "windows[:, 1:].flatten()",
        "windows[:, :-1].flatten()",
        "train(model, ids, steps=30, context=4, batch=4): learns to predict the letter that the model sees",
    ),
    "no zero_grad": (5, "        optimizer.zero_grad()\n", "", "zero_grad, or p.grad = None, is missing"),
    "the first window": (
        5,
        "torch.randint(len(ids) - context, (batch, 1))",
        "torch.zeros(batch, 1, dtype=torch.long)",
        "trains on the same windows at every step",
    ),
    "loss of position 0": (
        5,
        "(logits.flatten(0, 1), windows[:, 1:].flatten())",
        "(logits[:, 0], windows[:, 1])",
        "learns from 4 of 16 letters in a batch, at positions [0]",
    ),
    "return 0.0": (5, "return loss.item()", "return 0.0", "returns 0.0000, but the loss of the last step is 3."),
    "position 0 of the logits": (9, "[0, -1].softmax", "[0, 0].softmax", "those of the first position"),
    "argmin": (
        9,
        "torch.multinomial(probabilities, 1)",
        "probabilities.argmin(keepdim=True)",
        "it takes the least probable letter",
    ),
    "no crop": (9, "ids[None, -gpt.context :]", "ids[None]", "the model sees more letters than its context"),
    "crop from the start": (9, "ids[None, -gpt.context :]", "ids[None, : gpt.context]", "it keeps the first letters"),
    "last letter only": (9, "ids[None, -gpt.context :]", "ids[None, -1:]", "the model sees only the last letter"),
    "ignored layer": (
        10,
        "def weights_of(gpt, ids, layer):\n",
        "def weights_of(gpt, ids, layer):\n    layer = 1\n",
        "weights_of(gpt, ids, layer=0) is",
    ),
    "query bias": (
        5,
        "self.query = nn.Linear(C, D, bias=False)",
        "self.query = nn.Linear(C, D)",
        "Head(8, 4).query(zeros) is",
    ),
    "greedy": (
        9,
        "torch.multinomial(probabilities, 1)",
        "probabilities.argmax(keepdim=True)",
        "always takes the most probable letter",
    ),
    "zero_grad after backward": (
        5,
        "        optimizer.zero_grad()\n        loss.backward()\n",
        "        loss.backward()\n        optimizer.zero_grad()\n",
        "is optimizer.step missing, or zero_grad after backward?",
    ),
    "no backward": (5, "        loss.backward()\n", "", "calls backward 0 times, not 30 times"),
    "a batch of one window": (
        5,
        "len(ids) - context, (batch, 1))",
        "len(ids) - context, (1, 1)).expand(batch, 1)",
        "trains on a batch of equal windows",
    ),
    "the letter before": (
        5,
        "model(windows[:, :-1])  # (B, T, V)\n",
        "model(windows[:, 1:])\n        windows = windows.roll(1, 1)\n",
        "other letters than the next ones",
    ),
    "rate ignored": (5, "lr=rate", "lr=0.01", "the rate is ignored"),
    "uphill": (5, "loss.backward()", "(-loss).backward()", "learns to predict other letters"),
    "no loss returned": (5, "return loss.item()", "pass", "returns a NoneType, expected the loss"),
    "untied output": (
        9,
        "self.norm = nn.LayerNorm(C)\n",
        "self.norm = nn.LayerNorm(C)\n        self.out = nn.Linear(C, V)\n",
        "has a parameter out.weight, which is not in the chapter",
    ),
    "other names": (7, "self.proj", "self.out", "Attention(8, 4)(x): has no parameter proj.weight"),
    "heads before parts": (
        7,
        "3, self.n_head, C // self.n_head)\n",
        "self.n_head, 3, C // self.n_head).transpose(2, 3)\n",
        "Attention(8, 4)(x) is",
    ),
    "no positions": (7, "rope(q), rope(k), v", "q, k, v", "queries and keys have no RoPE"),
    "rotated values": (7, "rope(q), rope(k), v", "rope(q), rope(k), rope(v)", "the values have RoPE too"),
    "targets as they are": (1, "for start in (0, 1)", "for start in (0, 0)", "the targets are not the next letters"),
    "no softmax": (1, "logits.softmax(-1)[letters", "logits[letters", "it is the logit, without a softmax"),
    "PyTorch's start": (
        9,
        "nn.init.normal_(parameter, std=0.02)",
        "pass",
        "starts token_embedding.weight with a standard",
    ),
    "no weight decay": (
        9,
        "                p -= rate * self.decay * p\n",
        "                pass\n",
        "decay is missing",
    ),
    "no correction": (9, "m / (1 - self.beta1**self.t)", "m", "three steps of AdamW([matrix, vector]) is"),
    "no warm-up": (9, "min((step + 1) / warmup, ", "min(1, ", "[rate_at(step, 500, peak=1) for step in range(500)] is"),
    "short gradients": (9, "(limit / length).clamp(max=1)", "limit / length", "it lengthens short gradients"),
    "old gradients": (9, "            p.grad = None\n", "", "zero_grad, or p.grad = None, is missing"),
    "small gains": (
        9,
        "            if parameter.ndim == 2:\n                nn.init",
        "            nn.init",
        "gains of its norms",
    ),
    "decayed biases": (9, "            if p.ndim == 2:\n    ", "", "vectors have weight decay too"),
    "unused clip": (9, "        clip([parameter.grad for parameter in gpt.parameters()])\n", "", "never calls clip"),
    "unused rate": (9, "rate_at(step, steps, peak))\n", "peak)\n", "never calls rate_at"),
    "one long window": (1, "view(count, context)", "view(1, count * context)", "evaluate(model, ids, context=5) is"),
    "float mask": (2, ".tril().bool()", ".tril()", "has torch.float32, expected torch.bool"),
    "first dimension": (2, "values.size(-2)", "values.size(0)", "average_past(values)"),
    "changed in place": (10, "gpt = copy.deepcopy(gpt)", "pass", "changed the model that it was given"),
    "cell state not kept": (11, "h, c = lstm_step", "h, _ = lstm_step", "lstm(x, W, U, b) is"),
    "columns": (1, "counts.sum(1, keepdim=True)", "counts.sum(0)", "each column sums to 1, not each row"),
    "keepdim": (1, "counts.sum(1, keepdim=True)", "counts.sum(1)", "the sum of the rows has no keepdim=True"),
    "no 1 added": (1, "counts = 1 + ", "counts = ", "no 1 is added to the counts"),
    "the future": (2, ".tril().bool()", ".triu().bool()", "it is true for later letters"),
    "columns of weights": (2, "weights.sum(1, keepdim=True)", "weights.sum(0)", "each column of the weights sums to 1"),
    "divided by T": (2, "weights / weights.sum(1, keepdim=True)", "weights / len(weights)", "divided by T"),
    "exchanged scores": (3, "x @ W_Q, x @ W_K", "x @ W_K, x @ W_Q", "queries and keys look exchanged"),
    "naive softmax": (4, "(scores - scores.max(-1, keepdim=True).values)", "scores", "largest score is not subtracted"),
    "d_k": (4, "math.sqrt(q.size(-1))", "q.size(-1)", "the scores are divided by d_k, not by its root"),
    "no scale": (4, " / math.sqrt(q.size(-1))", "", "the scores are not divided by the root of d_k"),
    "mask after softmax": (
        4,
        'masked_fill(~may_see(q.size(-2)), float("-inf"))\n    return softmax(scores)',
        "clone()\n    return softmax(scores) * may_see(q.size(-2))",
        "the mask comes after the softmax",
    ),
    "exchanged head": (5, "attend(self.query(x), self.key(x)", "attend(self.key(x), self.query(x)", "look exchanged"),
    "no residual": (5, "self.output(x + self.head(x))", "self.output(self.head(x))", "own x is not added"),
    "neighbors": (
        6,
        "a, b = x.chunk(2, dim=-1)",
        "a, b = x[..., ::2], x[..., 1::2]",
        "it pairs neighbors, not the two halves",
    ),
    "backward": (
        6,
        "a * angle.cos() - b * angle.sin(), a * angle.sin() + b",
        "a * angle.cos() + b * angle.sin(), b",
        "",
    ),
    "positions from 1": (6, "torch.arange(T)[:, None]", "torch.arange(1, T + 1)[:, None]", "the first position is 1"),
    "one norm": (8, "self.mlp(self.norm2(x))", "self.mlp(x)", "norm2 is missing"),
    "a list": (
        9,
        "nn.ModuleList(Block(C, n_head) for _ in range(n_layer))",
        "[Block(C, n_head)]",
        "is no nn.ModuleList",
    ),
    "reshape": (7, ".transpose(1, 2).flatten(2)", ".reshape(x.shape)", "the heads are not moved behind the letters"),
    "norm after": (
        8,
        "x = x + self.attention(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
        "x = self.norm1(x + self.attention(x))\n        return self.norm2(x + self.mlp(x))",
        "the norms come after the parts",
    ),
    "GELU": (8, ', approximate="tanh"', "", 'GELU has no approximate="tanh"'),
    "no last norm": (9, "self.norm(x) @ ", "x @ ", "the last norm is missing"),
    "rows": (10, "proj.weight[:, ", "proj.weight[", "the rows of proj.weight are zero, not the columns"),
    "exchanged states": (11, "return o.sigmoid() * c.tanh(), c", "return c, o.sigmoid() * c.tanh()", "h and c are"),
}

RIGHT: dict[str, tuple[int, str, str]] = {
    "loss as a number": (1, ".log().mean()\n", ".log().mean().item()\n"),
    "matrices, not layers": (
        5,
        assembled().partition("class Head(nn.Module):")[2].partition("class OneHead")[0],
        """
    def __init__(self, C, D):
        super().__init__()
        self.query, self.key, self.value = (nn.Parameter(torch.randn(C, D) / C**0.5) for _ in range(3))

    def forward(self, letters):
        return attend(letters @ self.query, letters @ self.key, letters @ self.value)


""",
    ),
    "gradient descent by hand": (
        5,
        "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n",
        """        for parameter in model.parameters():
            parameter.grad = None
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
""",
    ),
    "stacked windows, zero_grad at the end": (
        5,
        re.search(r"        starts = .*?    return", assembled(), re.DOTALL)[0],  # type: ignore[index]
        """        rows = [int(torch.randint(0, len(ids) - context - 1, ())) for _ in range(batch)]
        xs = torch.stack([ids[row : row + context] for row in rows])
        ys = torch.stack([ids[row + 1 : row + context + 1] for row in rows])
        loss = F.cross_entropy(model(xs).transpose(1, 2), ys)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return""",
    ),
    "logits of one letter more": (5, "model(windows[:, :-1])", "model(windows)[:, :-1]"),
    "loss as a tensor": (5, "return loss.item()", "return loss"),
    "a mask in a buffer": (
        7,
        "self.n_head = n_head\n",
        'self.n_head = n_head\n        self.register_buffer("mask", torch.ones(9, 9).tril())\n',
    ),
    "GPT-2's start": (
        9,
        (
            "for parameter in self.parameters():\n            if parameter.ndim == 2:\n"
            "                nn.init.normal_(parameter, std=0.02)"
        ),
        (
            "for name, parameter in self.named_parameters():\n            if parameter.ndim == 2:\n"
            "                scale = (2 * n_layer) ** -0.5 if '.proj' in name or '.down' in name else 1\n"
            "                nn.init.normal_(parameter, std=0.02 * scale)"
        ),
    ),
    "a tied layer": (
        9,
        "self.norm = nn.LayerNorm(C)\n        for",
        """self.norm = nn.LayerNorm(C)
        self.out = nn.Linear(C, V, bias=False)
        self.out.weight = self.token_embedding.weight
        for""",
    ),
}


def problem(folder: Path, chapter: int, before: str, after: str) -> str:
    """Return what the check of a chapter says about the course's code with another part."""
    code = assembled()
    assert before in code
    file = folder / "mygpt.py"
    file.write_text(code.replace(before, after), encoding="utf-8")
    answer = check(chapter, file)
    assert "\n" not in answer["problem"]
    assert isinstance(answer["problem"], str)
    return answer["problem"]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    chapter, right, wrong, words = WRONG[name]
    found = problem(tmp_path, chapter, right, wrong)
    assert found.startswith(f"chapter {chapter}: ")
    assert words in found


@pytest.mark.parametrize("name", RIGHT)
def test_right_code_passes_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert problem(tmp_path, 11, *RIGHT[name][1:]) == ""


def test_each_known_mistake_can_be_told_from_the_others(tmp_path: Path) -> None:
    file = tmp_path / "mygpt.py"
    file.write_text(assembled(), encoding="utf-8")
    module = run_file(file)
    for case in (case for cases in CASES for case in cases(module) if not case.name.startswith("Head(8, 4).")):
        for a, b in combinations((case.expected, *case.mistakes.values()), 2):
            assert difference(a, b), case.name
