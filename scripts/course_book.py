"""Put the recorded numbers of the course into its pages, and write the data of its figures.

In docs/course, a number is followed by a comment that names it: `2.08<!--n:pairs-->` is the mean of the five seeds, and
`2.07 to 2.09<!--n:pairs seeds-->` their range. `2.06 to 2.10<!--n:pairs range-->` is the range of the course, which
is wider. `<!--n:1:pairs-->` is a number of chapter 1.
"""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import marks
import torch
from by_hand import compute

from minigpt.course import letters, networks
from minigpt.course.by_hand import COMPONENTS, WORDS
from minigpt.course.chapters import CHAPTERS, SEEDS, Chapter
from minigpt.interpret.gradient import gradient_by_distance
from minigpt.model.load import load_model
from minigpt.storage.checkpoint import load_checkpoint

FIGURES = Path(__file__).resolve().parent.parent / "docs/course/figures-data.js"
TABLE = re.compile(r"(?<=<!--films-->\n).*?(?=<!--/films-->)", re.DOTALL)
SUMMARY = re.compile(rf"(?:{marks.NUMBER} to\s)?(?:{marks.NUMBER}|\?)<!--f:(\w+)-->")


def fill(page: str, chapter: Chapter) -> str:
    """Return a chapter's page with the recorded number before each comment."""
    page = marks.fill(page, lambda name: _number(name, chapter))
    if "<!--f:" in page or "<!--films-->" in page:
        rows = recorded_figures(FIGURES)["films"]["rows"]
        page = TABLE.sub(lambda _: _table_of_films(rows), page)
        page = SUMMARY.sub(lambda found: f"{_summary_of_films(rows, found[1])}<!--f:{found[1]}-->", page)
    return page


def _table_of_films(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of chapter 11: what the first seeds reached, and when all were recorded."""
    lines = [
        "| seed | loss | half at step | P(`A`) | finds Anna, without it | most needed, without it |",
        "|--:" * 6 + "|",
    ]
    for row in rows[:8]:
        heads = f"{row['head']}, {row['without head']:.0%} | {row['needed']}, {row['without']:.0%}"
        lines.append(f"| {row['seed']} | {row['loss']:.3f} | {row['half'] or 'none'} | {row['A']:.0%} | {heads} |")
    dates = sorted({row["recorded"] for row in rows})
    recorded = f"Recorded by `scripts/record_course`, {' to '.join(dates[:: max(1, len(dates) - 1)])}."
    return "\n".join(["", *lines, "", recorded, ""])


def _summary_of_films(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the number of films, of all or of those that passed or need one head, or the range of a value."""
    passed = [row for row in rows if row["half"] is not None]
    counts = {"count": len(rows), "passed": len(passed), "need": sum(row["without"] <= 0.5 for row in rows)}
    if name in counts:
        return str(counts[name])
    values = sorted(row[name] for row in (passed if name == "half" else rows) if name in row)
    styles = {"half": ".0f", "A": ".0%", "without": ".0%"}
    low, high = (f"{value:{styles.get(name, '.3f')}}" for value in (values[0], values[-1]))
    return f"{low} to {high}"


def _number(name: str, chapter: Chapter) -> str:
    if other := re.match(r"(\d+):", name):
        chapter, name = CHAPTERS[int(other[1]) - 1], name[other.end() :]
    key = name.removesuffix(" range").removesuffix(" seeds")
    number = chapter.numbers[key]
    if name.endswith(" seeds"):
        return f"{number.show(min(number.values))} to {number.show(max(number.values))}"
    return number.show(statistics.fmean(number.values)) if key == name else number.show_range()


MODELS = (
    ("pairs", 1, "pairs", "A pairs"),
    ("average and last letter", 2, "both", "A average"),
    ("one head", 5, "trained", "A head"),
    ("with RoPE", 6, "mine rope", "A rope"),
    ("four heads", 7, "mine heads", "A heads"),
    ("three blocks", 8, "mine blocks", "A blocks"),
    ("your GPT", 9, "gpt", "A gpt"),
)
"""The reader's models, with the chapter and the names of their loss and their probability of "A"."""


def book_text(book: Sequence[Mapping[str, Any]]) -> str:
    """Return the content of chapters.json, with a line for each number."""
    chapters = []
    for chapter in book:
        numbers = [f"  {json.dumps(name)}: {json.dumps(number)}" for name, number in chapter["numbers"].items()]
        chapters.append(f' {{"title": {json.dumps(chapter["title"])}, "numbers": {{\n' + ",\n".join(numbers) + "\n }}")
    return "[\n" + ",\n".join(chapters) + "\n]\n"


def bars(book: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the data of the figures whose numbers are in chapters.json: the mean of each bar."""

    def mean(chapter: int, name: str) -> float:
        return round(statistics.fmean(book[chapter - 1]["numbers"][name]["values"]), 4)

    def series(title: str, chapter: int, labels: Mapping[str, str]) -> dict[str, Any]:
        return {"name": title, "rows": [[label, mean(chapter, name)] for name, label in labels.items()]}

    kinds = {"rotary": "RoPE", "learned": "learned", "none": "none"}
    layers = range(networks.LAYERS)
    loss_of_heads = series("loss", 7, {f"heads {n}": f"{n} head{'s' * (n > 1)}" for n in networks.HEADS})
    four = dict(loss_of_heads["rows"])["4 heads"]
    return {
        "training": [
            {"name": "loss", "rows": [[model, mean(chapter, loss)] for model, chapter, loss, _ in MODELS]},
            {"name": "probability of A", "rows": [[model, mean(chapter, name)] for model, chapter, _, name in MODELS]},
        ],
        "positions": [
            series("four layers", 6, kinds),
            series("one layer", 6, {f"{kind}, one layer": kinds[kind] for kind in ("rotary", "none")}),
        ],
        "heads": [
            loss_of_heads,
            {"name": "loss above four heads", "rows": [[k, round(v - four, 4)] for k, v in loss_of_heads["rows"]]},
        ],
        "layers": [
            series(
                "stop after",
                8,
                {f"after {n}": f"{n} layer{'s' * (n != 1)}" for n in layers} | {"whole": "the whole model"},
            ),
            *(series(f"rise without {w}", 8, {f"{p} {n}": f"layer {n + 1}" for n in layers}) for p, w in PARTS),
        ],
    }


PARTS = (("attention", "the attention of"), ("mlp", "the MLP of"))


def recorded_figures(path: Path) -> dict[str, Any]:
    """Return the data of all figures as recorded."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8").removeprefix("window.COURSE = ").rstrip(";\n"))
    return found


def measured_figures() -> dict[str, Any]:
    """Return the data of the other figures. The current folder has the runs of the course."""
    tokenizer, training, _ = letters.text()
    hand = compute()
    table = letters.table(training, 1, tokenizer.vocab_size)
    return {
        "pairs": {
            "letters": [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)],
            "table": [[round(share, 4) for share in row] for row in table.tolist()],
        },
        "fox": {"words": WORDS, "components": COMPONENTS, "keys": hand.k, "query": hand.q[-1]},
        "head": {"prompt": letters.PROMPT, "steps": _head()},
        "rivals": _rivals(),
    }


def _head() -> dict[str, list[float]]:
    tokenizer, _, _ = letters.text()
    torch.manual_seed(SEEDS[0])
    model = letters.OneHead(tokenizer.vocab_size)
    ids, found = torch.from_numpy(tokenizer.encode(letters.PROMPT))[None], {}
    for steps, name in ((0, "0"), (letters.EARLY, "100"), (letters.STEPS - letters.EARLY, "1,000")):
        letters.train(model, steps)
        with torch.no_grad():
            found[name] = [round(weight, 4) for weight in model.weights(ids)[0, -1].tolist()]
    return found


def _name(run: str, seed: int) -> str:
    return f"course-{run}" + f"-seed-{seed}" * (seed != 1)


def _losses(run: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(row["step"], round(row["loss"], 4)) for row in rows if row["split"] == "validation"]


def _rivals() -> dict[str, Any]:
    found: dict[str, Any] = {"loss": {}, "gradient": {}}
    for kind in ("lstm", "gpt"):
        name = _name(f"12-{kind}", SEEDS[0])
        checkpoint = load_checkpoint(name, "last")
        found["loss"][kind] = _losses(Path("runs") / name)[1:]
        gradient = gradient_by_distance(load_model(checkpoint), networks.windows(checkpoint))
        found["gradient"][kind] = [(d, round(value, 6)) for d, value in enumerate(gradient.tolist()) if 0 < d < 48]
    return found
