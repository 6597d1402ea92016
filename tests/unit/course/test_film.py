"""Chapter 11: the reader's film, and the run that it becomes."""

import copy
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from course_pages import assembled
from random_models import TEXT, checkpoint

from minigpt.course import film, letters
from minigpt.course.chapters import CHAPTERS
from minigpt.course.worker import run_file
from minigpt.errors import RunExistsError, UserError
from minigpt.interpret.extract import ablate_heads
from minigpt.model.load import load_transformer
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.runs import saved_steps
from minigpt.training.evaluate import evaluate

Film = dict[str, Any]
SHAPE = {"context": 128, "n_layer": 1, "n_head": 2, "C": 8}


@pytest.fixture
def make_film(empty_folder: Path) -> Callable[..., Film]:
    """Return a function that returns a film of two moments, as try10.py writes it."""
    file = empty_folder / "mygpt.py"
    file.write_text(assembled(), encoding="utf-8")
    mygpt, (tokenizer, *_) = run_file(file), letters.text()
    alphabet = list(tokenizer.decode(range(tokenizer.vocab_size)))

    @torch.no_grad()
    def make(seed: int = 1, alphabet: list[str] = alphabet) -> Film:
        torch.manual_seed(seed)
        gpt, moments = mygpt.GPT(len(alphabet), **SHAPE), {}
        for step in (0, 3):
            for parameter in gpt.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
            logits = gpt(mygpt.encode(letters.PROMPT, alphabet)[None])[0]
            moments[step] = {"weights": copy.deepcopy(gpt.state_dict()), "logits": logits}
        return {"seed": seed, "letters": alphabet, "prompt": letters.PROMPT, "shape": SHAPE, "moments": moments}

    return make


def test_a_film_becomes_a_run_with_frames(make_film: Callable[..., Film], monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_film()
    torch.save(made, film.FILM)
    monkeypatch.setattr(film, "WINDOWS", 1)
    monkeypatch.setattr(film, "LINKED_WINDOWS", 2)
    numbers = film.learned(seed=1)
    assert set(numbers) == set(CHAPTERS[10].numbers)
    assert numbers["A"] == pytest.approx(
        made["moments"][3]["logits"][-1].softmax(-1)[made["letters"].index("A")].item()
    )
    assert numbers["least"] <= numbers["without copy"] <= numbers["most"]
    assert list(saved_steps(Path("runs") / film.RUN)) == [0, 3]
    last = load_checkpoint(film.RUN)
    assert last.metadata.imported == "mygpt.py"
    assert (last.weights["norm.weight"] == made["moments"][3]["weights"]["norm.weight"].numpy()).all()
    film.make_run(film.read_film())  # again: it is there
    torch.save(make_film(seed=2), film.FILM)
    with pytest.raises(RunExistsError):
        film.make_run(film.read_film())


def no_head(made: Film) -> None:
    made["shape"] = {**SHAPE, "n_head": 1}


def wide(made: Film) -> None:
    made["shape"] = {**SHAPE, "C": 16}


def other_letters(made: Film) -> None:
    made["letters"] = ["ä", *made["letters"][1:]]


def deeper(made: Film) -> None:
    made["moments"][3]["weights"]["blocks.1.norm1.weight"] = torch.ones(8)


def empty(made: Film) -> None:
    made["moments"].clear()


def old(made: Film) -> None:
    made.pop("prompt")


def text(made: Film) -> None:
    made["moments"] = "none"


WRONG = {
    "at step 0, your GPT computes other logits than minigpt's": no_head,
    "has a different shape from the GPT of chapter 9: blocks.0.attention.proj.bias has (8,), expected (16,)": wide,
    "has a different vocabulary from the course's stories.txt; train it again: python try10.py": other_letters,
    "blocks.1.norm1.weight has (8,), expected none; train it again": deeper,
    "is not a film of chapter 10; train it again: python try10.py": empty,
    "is not a film of chapter 10": old,
    "is damaged, or not a file of torch.save": text,
}


@pytest.mark.parametrize(("problem", "change"), WRONG.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_film_of_another_model_is_refused(
    make_film: Callable[..., Film], problem: str, change: Callable[[Film], None]
) -> None:
    made = make_film()
    change(made)
    torch.save(made, film.FILM)
    with pytest.raises(UserError) as caught:
        film.read_film()
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_damaged_film_is_named(empty_folder: Path) -> None:
    with pytest.raises(UserError, match=r"no film.pt here; chapter 10 trains your GPT and writes it: python try10.py"):
        film.read_film()
    film.FILM.write_bytes(b"PK\x03\x04 half")
    with pytest.raises(UserError, match=r"film.pt is damaged"):
        film.read_film()


def test_the_cost_of_a_head_is_the_rise_of_the_loss_without_it() -> None:
    loaded = checkpoint()
    model, ids = load_transformer(loaded), loaded.tokenizer.encode(TEXT)
    windows = [ids[:30], ids[30:60]]

    def mean_loss() -> float:
        return statistics.fmean(evaluate(model, window, loaded.tokenizer).loss for window in windows)

    costs, usual = film.head_costs(model, windows), mean_loss()
    with ablate_heads(model, {(1, 0)}):
        assert costs[1, 0].item() == pytest.approx(mean_loss() - usual, abs=1e-6)
    assert costs.shape == (2, 2)
    assert len(costs.unique()) == 4
