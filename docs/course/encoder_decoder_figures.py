"""Draw the figures of encoder_decoder.py."""

import hashlib
import json
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

STYLES = {"LSTM": ("#d55e00", "o"), "LSTM with attention": ("#009e73", "s"), "transformer": ("#2563a8", "^")}
"""A color and a marker for each model."""


def digest(runs: list[dict[str, Any]]) -> str:
    """Return a hash of the results. Each figure has it in its PNG metadata, as `Source`."""
    return hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:16]


def draw(runs: list[dict[str, Any]], longest: int, folder: Path) -> None:
    """Save both figures of `runs`, the results of `study`. `longest` is the length of the longest training word."""
    draw_accuracy(runs, longest, folder / "encoder-decoder-accuracy.png")
    draw_alignment(runs, folder / "encoder-decoder-alignment.png")


def draw_accuracy(runs: list[dict[str, Any]], longest: int, path: Path) -> None:
    """Draw accuracy against length: the mean and the range of each model over its seeds."""
    chart, panel = plt.subplots(figsize=(8, 4), layout="constrained")
    for name, (color, marker) in STYLES.items():
        found = [run["accuracy"] for run in runs if run["model"] == name]
        lengths = [int(length) for length in found[0]]
        by_length = list(zip(*(accuracy.values() for accuracy in found), strict=True))
        means = [sum(seeds) / len(seeds) for seeds in by_length]
        panel.plot(lengths, means, color=color, marker=marker, markersize=5, label=name)
        panel.fill_between(lengths, [*map(min, by_length)], [*map(max, by_length)], color=color, alpha=0.2, linewidth=0)
    panel.axvspan(longest + 0.5, lengths[-1] + 0.5, color="#eeeeee", zorder=0)
    panel.text(longest + 0.7, 1.04, "longer than in training")
    panel.set(xlim=(lengths[0] - 0.5, lengths[-1] + 0.5), ylim=(-0.03, 1.12), xticks=lengths[::2])
    panel.set(xlabel="letters of the word", ylabel="words reversed without a mistake")
    panel.yaxis.set_major_formatter("{x:.0%}")
    panel.legend(loc="lower left")
    chart.savefig(path, dpi=120, metadata={"Source": digest(runs)})
    plt.close(chart)


def draw_alignment(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw the weights of the first run of each model that has attention: a row per word, a column per model."""
    attending = [run for run in runs if any(rows for _, rows in run.get("written", {}).values())]
    firsts = {run["model"]: run["written"] for run in reversed(attending)}
    names, words = sorted(firsts, reverse=True), runs[0]["written"]
    chart, panels = plt.subplots(len(words), len(names), figsize=(9, 9.4), layout="constrained")
    for line, word in zip(panels, words, strict=True):
        for panel, name in zip(line, names, strict=True):
            output, rows = firsts[name][word]
            panel.imshow(rows, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            panel.set_xticks(range(len(word) + 1), [*word, "."])
            panel.set_yticks(range(len(rows)), [*output, "."][: len(rows)])
            panel.set_title(f"{name}, {len(word)} letters")
            panel.set(xlabel="source (the dot is its end)", ylabel="output")
    chart.savefig(path, dpi=100, metadata={"Source": digest(runs)})
    plt.close(chart)
