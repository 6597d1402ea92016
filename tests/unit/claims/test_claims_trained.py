"""The questions to a trained model: their verdicts on models with a known answer."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from minigpt.config.schema import FAMILIES, ModelConfig
from minigpt.course.claims import trained_heads, trained_stories, trained_vectors
from minigpt.course.claims.claim import Head
from minigpt.course.claims.evidence import (
    INCONCLUSIVE,
    LINKED_WINDOWS,
    NOT_APPLICABLE,
    NOT_SUPPORTED,
    SUPPORTED,
    Evidence,
    judge,
    kendall_tau,
    rank_correlation,
)
from minigpt.course.claims.trained import QUESTIONS, ask
from minigpt.course.claims.trained_stories import PRONOUN_TEXTS
from minigpt.errors import UserError
from minigpt.interpret.links import LINKS
from minigpt.model.gpt import GPT
from minigpt.model.load import load_model
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.stories import links, stories
from minigpt.text.tokenizer import CharTokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def untrained(**changes: object) -> Checkpoint:
    """The checkpoint of an untrained model, with the initial weights of its seed."""
    from minigpt.config.resolve import resolve
    from minigpt.config.schema import RunConfig
    from minigpt.seeds import mix_seed
    from minigpt.storage.metadata import Metadata

    shape = {"n_layer": 2, "n_head": 4, "n_embd": 32, "context": 32, **changes}
    config: RunConfig = resolve(("test", {f"model.{key}": value for key, value in shape.items()})).config
    torch.manual_seed(mix_seed(config.train.seed, "weights"))
    model = GPT(ModelConfig(**{**FAMILIES["modern"], **shape}), len(LETTERS)).eval()
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    return Checkpoint(config, CharTokenizer(LETTERS), Metadata.model_construct(), weights, Path("nowhere"))


def letters(count: int = 32 * 8) -> np.ndarray:
    return np.random.default_rng(5).integers(0, len(LETTERS), count).astype(np.uint8)


def evidence(loaded: Checkpoint, windows: int = 8) -> Evidence:
    return Evidence(loaded, letters(32 * windows))


def of_stories(loaded: Checkpoint) -> Checkpoint:
    data = loaded.config.data.model_copy(update={"source": ("builtin:stories:5000",)})
    return replace(loaded, config=loaded.config.model_copy(update={"data": data}))


@pytest.mark.parametrize(
    ("values", "margin", "verdict"),
    [
        ([1.0, 1.1, 0.9, 1.0], 0.5, SUPPORTED),
        ([1.0, 1.1, 0.9, 1.0], 1.5, NOT_SUPPORTED),
        ([1.0, 1.1, 0.9, 1.0], 1.2, INCONCLUSIVE),  # two standard errors, but only four windows
        ([-3.0, 3.0, -2.0, 4.0], 0.0, INCONCLUSIVE),
        ([1.0, 1.0], 0.0, INCONCLUSIVE),  # too few windows
        ([1.0, 1.0, math.nan], 0.0, INCONCLUSIVE),
    ],
)
def test_a_verdict_requires_confidence(values: list[float], margin: float, verdict: str) -> None:
    assert judge(torch.tensor(values), margin) == verdict


def test_an_untrained_model_supports_nothing() -> None:
    found = ask(untrained(), letters())
    assert [result for result in found if result.verdict == SUPPORTED] == []
    measured = {result.id: result.measured for result in found}
    assert measured[17].endswith(": attention has no effect")  # blocks start at zero
    assert "0 cost more than 0.001 nats, 8 cost less" in measured[47]
    assert measured[87].startswith("moved by 0 times")


def test_repetitive_text_shows_no_induction_head() -> None:
    """In "aaaa" almost every key follows the same character, so uniform attention scores high, too."""
    loaded = untrained()
    tokens = np.zeros(32 * 8, np.uint8)
    verdict, measured, _ = trained_heads.some_head_follows("induction")(Evidence(loaded, tokens))
    assert verdict == NOT_SUPPORTED
    assert float(measured.rpartition(" ")[2]) > 0.8  # the baseline


def test_a_previous_token_head_is_found() -> None:
    """The head of this model matches each query with the key one position before."""
    loaded = untrained(position="learned", qk_norm=False, n_head=1, n_embd=64)
    for array in loaded.weights.values():
        array[:] = 0
    loaded.weights["token_embedding.weight"][:, 32:] = 0.01
    loaded.weights["position_embedding.weight"][:, :32] = np.eye(32)
    loaded.weights["blocks.0.norm1.weight"][:] = 1
    q, k, _ = loaded.weights["blocks.0.attention.qkv.weight"].reshape(3, 64, 64)
    q[:32, :32], k[:32, :32] = 100 * np.roll(np.eye(32), 1, 1), np.eye(32)
    verdict, measured, heads = trained_heads.some_head_follows("previous")(evidence(loaded))
    assert heads == (Head(0, 0),)
    assert verdict == SUPPORTED
    assert measured.startswith("head 0.0: 1 of its attention, uniform 0.0")
    assert trained_heads.attention_selects(evidence(loaded))[0] == SUPPORTED
    assert trained_heads.some_head_follows("first")(evidence(loaded))[0] == NOT_SUPPORTED


def test_windows_without_the_pattern_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nan in the first half must not select head 0.0."""
    values, uniform = torch.full((8, 1, 4), 0.02), torch.full((8,), 0.01)
    values[:, 0, 3] = 0.6
    values[1], uniform[1] = math.nan, math.nan
    values[6], uniform[6] = math.nan, math.nan
    monkeypatch.setattr(Evidence, "scores", lambda *_: (values, uniform))
    verdict, measured, _ = trained_heads.some_head_follows("induction")(evidence(untrained()))
    assert (verdict, measured) == (SUPPORTED, "head 0.3: 0.6 of its attention, uniform 0.01")
    values[:], uniform[:] = math.nan, math.nan
    assert trained_heads.some_head_follows("induction")(evidence(untrained())) == (
        INCONCLUSIVE,
        "the pattern does not occur in the windows",
        (),
    )


@pytest.mark.parametrize(
    ("name", "other", "verdict"),
    [(0.9, 0.05, SUPPORTED), (0.5, 0.4, NOT_SUPPORTED), (0.12, 0.0, NOT_SUPPORTED)],
)
def test_a_head_that_links_pronouns_prefers_the_right_name(
    monkeypatch: pytest.MonkeyPatch, name: float, other: float, verdict: str
) -> None:
    """It must attend more to this name than to the other one, and more than uniform attention does."""
    scores = {link: torch.full((16, 2, 4), 0.01) for link in LINKS}
    scores["she"][:, 1, 2], scores["not she"][:, 1, 2] = name, other
    scores["she"][::2] = scores["not she"][::2] = math.nan  # windows without this pronoun
    scores["copy"][:, 1, 2] = name
    before, uniform = torch.full((16, 2, 4), 0.03), torch.full((16,), 0.05)
    monkeypatch.setattr(
        Evidence, "link_scores", lambda _, link: (scores[link], before, uniform + 0 * scores[link][:, 0, 0])
    )
    monkeypatch.setattr(Evidence, "linked_windows", [np.zeros(32)] * 16)
    loaded = untrained()
    assert trained_stories.some_head_links(evidence(loaded))[0] == NOT_APPLICABLE
    on_stories = evidence(of_stories(loaded))
    of_he, of_she = (
        f"head {head}: {a:g} of its attention on the name that {who} means, {b:g} on the other name, uniform 0.05, "
        "random weights 0.03"
        for head, who, a, b in (("0.0", "He", 0.01, 0.01), ("1.2", "She", name, other))
    )
    of_he += " (NOT SUPPORTED)" * (verdict != NOT_SUPPORTED)
    heads = (Head(0, 0, PRONOUN_TEXTS["he"]), Head(1, 2, PRONOUN_TEXTS["she"]))
    assert trained_stories.some_head_links(on_stories) == (verdict, f"{of_he}\n{of_she}", heads)
    scores["he"][:] = math.nan  # windows without this pronoun
    assert trained_stories.some_head_links(on_stories) == (verdict, of_she, heads[1:])
    found, text, heads = trained_stories.some_head_copies(on_stories)
    assert heads == (Head(1, 2),)
    assert found == (SUPPORTED if name > 0.2 else NOT_SUPPORTED)
    assert text == f"head 1.2: {name:g} of its attention, uniform 0.05, random weights 0.03"


def test_windows_without_links_are_skipped() -> None:
    """Only some windows of the stories have a pronoun's link, and a verdict needs many that do."""
    text = "".join(stories(40_000, seed=1))
    chars = "".join(sorted(set(text)))
    loaded = of_stories(untrained(context=192))
    weights = {**loaded.weights, "token_embedding.weight": np.eye(len(chars), 32, dtype=np.float32)}
    seen = Evidence(replace(loaded, tokenizer=CharTokenizer(chars), weights=weights), CharTokenizer(chars).encode(text))
    kinds = [{link.kind for link in links(text[192 * i : 192 * (i + 1)])} for i in range(208)]
    expected = [192 * i for i, found in enumerate(kinds) if found > {"copy"}][:LINKED_WINDOWS]
    assert len(expected) == LINKED_WINDOWS
    assert [seen.loaded.tokenizer.decode(window) for window, _ in seen.linked_windows] == [
        text[start : start + 192] for start in expected
    ]
    for name in LINKS:
        now, then, uniform = seen.link_scores(name)
        assert now.shape == then.shape == (LINKED_WINDOWS, 2, 4)
        assert uniform.shape == (LINKED_WINDOWS,)
        assert (now.isfinite() == uniform.isfinite()[:, None, None]).all()
    short = Evidence(seen.loaded, seen.tokens[: expected[1] + 191])  # one window with links
    assert trained_stories.some_head_links(short) == trained_stories.TOO_SHORT
    assert trained_stories.some_head_copies(short) == trained_stories.TOO_SHORT


def test_the_texts_that_show_a_head_end_where_it_is_needed() -> None:
    """They have both names, and end with the space before the name that the pronoun means."""
    for pronoun, text in PRONOUN_TEXTS.items():
        name = {"he": "Jakob", "she": "Anna"}[pronoun]
        (link,) = [link for link in links(f"{text}{name}".replace(". ", ".\n")) if link.kind == pronoun]
        assert link.query == len(text) - 1
        assert "".join(text[key] for key in link.keys) == name


def test_embeddings_that_only_decayed_did_not_learn() -> None:
    loaded = untrained()
    loaded.weights["token_embedding.weight"][:] *= 0.6
    verdict, measured, _ = trained_vectors.embeddings_learn(evidence(loaded))
    assert verdict == NOT_SUPPORTED
    assert measured == "moved by 0.4 times their initial length; cosine to the initial embedding 1"


def test_weights_of_another_run_have_no_random_start_to_compare_with() -> None:
    loaded = untrained()
    loaded = replace(loaded, metadata=loaded.metadata.model_copy(update={"imported": "nanoGPT"}))
    assert trained_vectors.embeddings_learn(evidence(loaded)).verdict == NOT_APPLICABLE


def test_groups_of_similar_embeddings_are_found() -> None:
    loaded = untrained()
    with torch.no_grad():
        groups = torch.tensor([trained_vectors._group(letter) for letter in loaded.tokenizer.chars])
        loaded.weights["token_embedding.weight"][:] += 0.1 * torch.eye(4, 32)[groups].numpy()
    verdict, measured, _ = trained_vectors.embeddings_group_characters(evidence(loaded))
    assert verdict == SUPPORTED, measured
    weights = {name: tensor.detach().numpy() for name, tensor in GPT(loaded.config.model, 3).state_dict().items()}
    few = replace(loaded, tokenizer=CharTokenizer("ab "), weights=weights)
    assert trained_vectors.embeddings_group_characters(Evidence(few, letters(32)))[0] == INCONCLUSIVE


def test_one_useless_head_contradicts_that_all_help() -> None:
    loaded = untrained()
    costs = torch.full((8, 2, 4), 0.1) + 0.001 * torch.arange(8)[:, None, None]
    helped, not_helped = evidence(loaded), evidence(loaded)
    helped.__dict__["costs"] = costs
    not_helped.__dict__["costs"] = costs * (torch.arange(8).view(2, 4) != 3)
    assert trained_heads.every_head_helps(helped)[0] == SUPPORTED
    verdict, measured, _ = trained_heads.every_head_helps(not_helped)
    assert verdict == NOT_SUPPORTED
    assert measured.startswith("of 8 heads, 7 cost more than 0.001 nats, 1 cost less, 0 are undecided")


def test_rank_correlation_is_spearman_within_layers() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 9.0, 4.0, 5.0]])
    assert rank_correlation(x, x**3)[0] == pytest.approx(1)
    assert rank_correlation(x, -x)[0] == pytest.approx(-1)
    assert 0.5 < rank_correlation(x, x)[1] < 1
    tied = torch.tensor([[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]])
    assert rank_correlation(tied, tied)[0] == pytest.approx(1)
    apart = torch.tensor([[1.0, 2.0, 3.0], [11.0, 12.0, 13.0]])
    assert rank_correlation(apart, torch.tensor([[3.0, 2, 1], [13, 12, 11]]))[0] == pytest.approx(-1)
    assert math.isnan(rank_correlation(x, torch.zeros(1, 6))[0])


def test_kendall_tau() -> None:
    rows = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 3.0, 2.0]])
    assert kendall_tau(rows).tolist() == pytest.approx([1, -1, 1 / 3])


def test_a_model_that_copies_gains_from_context() -> None:
    """The model copies the token that followed 32 positions earlier, which a short context does not reach."""
    C, V = 128, len(LETTERS)
    model = load_model(untrained(context=64, n_layer=1, n_head=1, n_embd=C, position="learned", qk_norm=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.norm.weight.fill_(1)
        model.blocks[0].norm1.weight.fill_(1)
        model.token_embedding.weight[:, :V] = torch.eye(V)
        model.position_embedding.weight[:, 64:] = torch.eye(64)
        q, k, v = model.blocks[0].attention.qkv.weight.view(3, C, C)
        q[:64, 64:], k[:64, 64:] = 1000 * torch.eye(64).roll(31, 1), torch.eye(64)  # attends 31 positions back
        v[:V, :V] = torch.eye(V)
        model.blocks[0].attention.proj.weight[:V, :V] = 10 * torch.eye(V)
    gain = trained_vectors.context_gain(model, np.tile(letters(32), 2))
    assert gain.shape == (2,)
    assert gain[0] == pytest.approx(0, abs=1e-5)  # before the first layer there is no context
    assert gain[1] > 2


def test_a_single_head_has_no_other_to_differ_from() -> None:
    assert trained_heads.heads_differ(evidence(untrained(n_layer=1, n_head=1)))[0] == INCONCLUSIVE


def test_a_split_or_context_that_is_too_short_is_an_error() -> None:
    with pytest.raises(UserError, match="the validation split has 31 tokens; the questions need at least 32"):
        ask(untrained(), letters(31))
    with pytest.raises(UserError, match="a context of 2 tokens"):
        ask(untrained(context=2), letters())
    verdicts = {result.verdict for result in ask(untrained(), letters(32))}
    assert verdicts <= {INCONCLUSIVE, SUPPORTED, NOT_SUPPORTED, NOT_APPLICABLE}


def test_the_model_does_not_change() -> None:
    loaded = untrained()
    before = {name: array.copy() for name, array in loaded.weights.items()}
    state = torch.get_rng_state()
    first, second = ask(loaded, letters()), ask(loaded, letters())
    assert first == second
    assert torch.equal(torch.get_rng_state(), state)
    assert all(np.array_equal(array, before[name]) for name, array in loaded.weights.items())


def test_the_questions_are_in_order_and_name_their_notes() -> None:
    ids = [question.id for question in QUESTIONS]
    assert ids == sorted(set(ids))
    for question in QUESTIONS:
        assert question.question.endswith("?")
        assert question.notes
        assert set(question.notes) <= {"000", "001", "002", "003", "004"}
