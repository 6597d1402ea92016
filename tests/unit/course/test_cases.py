"""What `course check` accepts and refuses: the file of the course, with one part written in another way."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from course_pages import assembled

from minigpt.course import worker
from minigpt.course.cases import CASES
from minigpt.course.comparison import difference
from minigpt.course.worker import check, run_file

CODE = assembled()
Problem = Callable[[int, str, str], str]
TRAIN = "train(model, ids, steps=30, context=4, batch=4)"
GPT, SMALL_GPT = "GPT(9, 16, n_layer=2, n_head=4, C=8)", "GPT(99, 16, n_layer=1, n_head=4, C=64)"
ZERO, BACKWARD, UPDATE = "        optimizer.zero_grad()\n", "        loss.backward()\n", "        optimizer.step()\n"
STEP = ZERO + BACKWARD + UPDATE
OUT, TIED = "nn.LayerNorm(C), nn.Linear(C, V, ", "self.token_embedding.weight"
MATRICES = """
    def __init__(self, C, D):
        super().__init__()
        self.query, self.key, self.value = (nn.Parameter(torch.randn(C, D)) for _ in range(3))

    def forward(self, letters):
        return attend(letters @ self.query, letters @ self.key, letters @ self.value)
"""
ROUNDS, MUON, OPTIMIZER = (
    "orthogonalize(g) of shape",
    "three steps of Muon(gpt)",
    "gpt, ids, steps=2, optimizer=optimizer",
)
MOMENTUM = "            m.lerp_(p.grad, 1 - self.momentum)\n            update = p.grad.lerp(m, self.momentum)"
MOMENTUM += "  # 0.05 p.grad + 0.95 m\n"
DECAY = "            p -= rate * self.decay * p\n"
LATE = """            p.grad = torch.cat([orthogonalize(part) for part in p.grad.chunk(parts)])
            m.lerp_(p.grad, 1 - self.momentum)
            update = p.grad.lerp(m, self.momentum)
            p -= rate * self.decay * p
            p -= rate * max(1, p.size(0) / parts / p.size(1)) ** 0.5 * update
            continue
"""
STARTS = "nn.init.normal_(parameter, std=0.02)"

WRONG: list[tuple[int, str, str, str, str]] = [
    # chapter, right code, wrong code, the case that refuses it, and a word of its problem if it has several
    (1, "counts.sum(1, keepdim=True)", "counts.sum(0)", "pair_probabilities(ids, V)", "column"),
    (1, "view(count, context)", "view(1, count * context)", "evaluate(model, ids, context=5)", ""),
    (2, ".tril().bool()", ".tril()", "may_see(6)", "torch.bool"),
    (2, "values.size(-2)", "values.size(0)", "average_past(values)", ""),
    (3, "x @ W_Q, x @ W_K", "x @ W_K, x @ W_Q", "scores(fox, W_Q, W_K)", "exchanged"),
    (4, "(scores - scores.max(-1, keepdim=True).values)", "scores", "softmax(1000 * scores)", ""),
    (5, "self.query = nn.Linear(C, D, bias=False)", "self.query = nn.Linear(C, D)", "Head(8, 4).query(zeros)", ""),
    (5, "windows[:, 1:].flatten()", "windows[:, :-1].flatten()", TRAIN, "the letter that the model sees"),
    (5, "loss.backward()", "(-loss).backward()", TRAIN, "other letters"),
    (5, ZERO, "", TRAIN, "adds the gradients"),
    (5, UPDATE, "", TRAIN, "optimizer.step"),
    (5, BACKWARD, "", TRAIN, "0 times"),
    (5, "torch.randint(len(ids) - context, (batch, 1))", "torch.zeros(batch, 1).long()", TRAIN, "same windows"),
    (5, "len(ids) - context, (batch, 1))", "len(ids) - context, (1, 1)).expand(batch, 1)", TRAIN, "equal windows"),
    (5, "(logits.flatten(0, 1), windows[:, 1:].flatten())", "(logits[:, 0], windows[:, 1])", TRAIN, "positions [0]"),
    (5, "model(windows[:, :-1])", "model(windows[:, 1:].flip(1))", TRAIN, "do not follow each other"),
    (5, "return loss.item()", "return 0.0", TRAIN, "0.0000"),
    (5, "return loss.item()", "pass", TRAIN, "NoneType"),
    (5, "lr=rate", "lr=0.01", "train(model, ids, steps=1, context=4, batch=4, rate=0)", ""),
    (6, "a, b = x.chunk(2, dim=-1)", "a, b = x[..., ::2], x[..., 1::2]", "rope(x)", "neighbors"),
    (7, "self.proj", "self.out", "Attention(8, 4)(x)", "no parameter proj.weight"),
    (8, "x + self.mlp(self.norm2(x))", "self.mlp(self.norm2(x))", "Block(8, 4)(x)", "output of the MLP"),
    (9, STARTS, "pass", SMALL_GPT, "standard deviation"),
    (9, f"            if parameter.ndim == 2:\n                {STARTS}", f"            {STARTS}", SMALL_GPT, "gains"),
    (9, "self.norm = nn.LayerNorm(C)\n", "self.norm, self.out = nn.LayerNorm(C), nn.Linear(C, V)\n", GPT, "out.weight"),
    (9, "nn.ModuleList(Block(C, n_head) for _ in range(n_layer))", "[Block(C, n_head)]", GPT, "nn.ModuleList"),
    (9, "ids[None, -gpt.context :]", "ids[None]", "generate(gpt, ids, 10) past the context", "more letters"),
    (9, "torch.multinomial(probabilities, 1)", "probabilities.argmax()[None]", "generate(gpt, ids, 15) samples", ""),
    (9, "m / (1 - self.beta1**self.t)", "m", "three steps of AdamW([matrix, vector])", ""),
    (9, "min((step + 1) / warmup, ", "min(1, ", "[rate_at(step, 500, peak=1) for step in range(500)]", ""),
    (9, "(limit / length).clamp(max=1)", "limit / length", "clip(gradients) of length 0.1", ""),
    (9, "rate_at(step, steps, peak))\n", "peak)\n", "train_gpt(gpt, ids, steps=2, at=at)", "rate_at"),
    (10, "x = g / g.norm()", "x = g", f"{ROUNDS} (3, 6)", "not divided by its norm"),
    (10, "for _ in range(5):\n        s", "for _ in range(3):\n        s", f"{ROUNDS} (3, 6)", "3 rounds"),
    (10, "for _ in range(5):\n        s", "for _ in range(10):\n        s", f"{ROUNDS} (3, 6)", "10 rounds"),
    (10, "return orthogonalize(g.T).T", "return orthogonalize(g.T)", f"{ROUNDS} (6, 3)", "the result is transposed"),
    (10, "if g.size(0) > g.size(1)", "if False", f"{ROUNDS} (64, 4)", "transpose a tall matrix first"),
    (10, "s = x @ x.T", "s = x.T @ x", f"{ROUNDS} (3, 6): line", "RuntimeError"),
    (10, 'parts = 3 if "qkv" in name else 1', "parts = 1", MUON, "one matrix"),
    (10, 'name.startswith("blocks.") and p.ndim == 2', "p.ndim == 2", MUON, "embeddings"),
    (10, f"{DECAY}            for w", "            for w", MUON, "weight decay"),
    (10, MOMENTUM, "            update = p.grad\n", MUON, ""),
    (10, "update = p.grad.lerp(m, self.momentum)", "update = m", MUON, "Nesterov"),
    (10, f"{MOMENTUM}{DECAY}", LATE, MUON, "of the updates, not of the gradients"),
    (10, " * max(1, w.size(0) / w.size(1)) ** 0.5", "", MUON, "not scaled"),
    (10, "w.size(0) / w.size(1)", "w.size(1) / w.size(0)", MUON, "columns / rows"),
    (10, "m.lerp_(p.grad, 1 - self.momentum)", "m.lerp_(p.grad, self.momentum)", MUON, "5%"),
    (10, "optimizer or AdamW(gpt.parameters())", "AdamW(gpt.parameters())", f"train_gpt({OPTIMIZER})", "0 times"),
    (11, "def weights_of(gpt, ids, layer):\n", "def weights_of(gpt, ids, layer):\n    layer = 1\n", "weights_of(", ""),
    (11, "proj.weight[:, ", "proj.weight[", "without_head(gpt, layer=1, head=2)(ids)", "rows"),
    (11, "gpt = copy.deepcopy(gpt)", "pass", "gpt(ids) is as before", ""),
    (12, "return o.sigmoid() * c.tanh(), c", "return o * c.tanh(), c", "lstm_step(x, h, c, W, U, b)[0]", ""),
    (12, "h, c = lstm_step", "h, _ = lstm_step", "lstm(x, W, U, b)", ""),
]  # fmt: skip

RIGHT: list[tuple[int, str, str]] = [
    (1, ".log().mean()\n", ".log().mean().item()\n"),
    (5, CODE.partition("class Head(nn.Module):\n")[2].partition("\n\n\n")[0], MATRICES),
    (5, f"{STEP}    return loss.item()", f"{BACKWARD}{UPDATE}{ZERO}    return loss"),
    (5, "model(windows[:, :-1])", "model(windows)[:, :-1]"),
    (7, "self.n_head = n_head\n", 'self.n_head = n_head\n        self.register_buffer("mask", torch.ones(9))\n'),
    (9, STARTS, "nn.init.normal_(parameter, std=0.02 if len(parameter) > C else 0.02 / 2**0.5)"),
    (9, "self.norm = nn.LayerNorm(C)\n", f"self.norm, self.out = {OUT}bias=False)\n        self.out.weight = {TIED}\n"),
]  # fmt: skip


@pytest.fixture
def problem(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """Return a function that returns what the cases of a chapter say about the course's code with another part."""

    def found(chapter: int, before: str, after: str) -> str:
        assert before in CODE
        file = empty_folder / "mygpt.py"
        file.write_text(CODE.replace(before, after), encoding="utf-8")
        skipped = [lambda my: iter(())] * (chapter - 1)
        monkeypatch.setattr(worker, "CASES", [*skipped, CASES[chapter - 1]])
        return check(chapter, file).problem

    return found


@pytest.mark.parametrize(("chapter", "right", "wrong", "case", "word"), WRONG)
def test_wrong_code_is_refused(problem: Problem, chapter: int, right: str, wrong: str, case: str, word: str) -> None:
    found = problem(chapter, right, wrong)
    assert found.startswith(f"chapter {chapter}: {case}"), found
    assert word in found
    assert "\n" not in found


@pytest.mark.parametrize(("chapter", "right", "other"), RIGHT)
def test_right_code_passes_however_it_is_written(problem: Problem, chapter: int, right: str, other: str) -> None:
    assert problem(chapter, right, other) == ""


def test_functions_may_come_from_another_file(empty_folder: Path) -> None:
    empty_folder.joinpath("parts.py").write_text(CODE, encoding="utf-8")
    empty_folder.joinpath("mygpt.py").write_text("from parts import *")
    assert check(12, empty_folder / "mygpt.py").problem == ""


def test_a_file_without_muon_passes_chapter_9(empty_folder: Path) -> None:
    code = CODE.partition("def orthogonalize")[0]
    empty_folder.joinpath("mygpt.py").write_text(code, encoding="utf-8")
    answer = check(12, empty_folder / "mygpt.py")
    assert answer.passed[9][-1] == "train_gpt(gpt, ids, steps=2, at=at)"
    expected = "chapter 10: mygpt.py has no orthogonalize; the check of chapter 12 includes the chapters before it"
    assert answer.problem == expected


def test_each_known_mistake_can_be_told_from_the_others(tmp_path: Path) -> None:
    file = tmp_path / "mygpt.py"
    file.write_text(CODE, encoding="utf-8")
    module = run_file(file)
    for case in (case for cases in CASES for case in cases(module) if not case.name.startswith("Head(8, 4).")):
        for a, b in combinations((case.expected, *case.mistakes.values()), 2):
            assert difference(a, b), case.name
