"""Descriptions of heads whose attention is constructed."""

import numpy as np
import pytest
import torch
from random_models import checkpoint

from minigpt.interpret.descriptions import Description, describe_heads, mean_scores, score_model
from minigpt.interpret.links import LINKS, links
from minigpt.interpret.scores import PATTERNS, pattern_keys, uniform_attention
from minigpt.model.load import load_transformer
from minigpt.text.stories import stories

TEXT = "the cat sat\non the mat\nthe end of the cat"


def head_on(keys: torch.Tensor, share: float = 0.6) -> torch.Tensor:
    """Return attention (T, T) that gives `share` to the keys (T, T, bool), evenly, and the rest to all tokens."""
    T = len(keys)
    keys = keys & torch.ones(T, T, dtype=torch.bool).tril()
    rest = uniform_attention(T)
    on = keys.double() / keys.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(keys.any(-1, keepdim=True), share * on + (1 - share) * rest, rest)


def phrase_of(*heads: torch.Tensor, text: str = TEXT) -> list[str]:
    (described,) = describe_heads(mean_scores([(torch.stack(heads)[None].float(), list(text))]))
    return [description.phrase for description in described]


def test_a_head_on_the_keys_of_a_pattern_gets_its_phrase() -> None:
    keys = pattern_keys(list(TEXT))
    assert phrase_of(*(head_on(keys[name]) for name in PATTERNS)) == list(PATTERNS.values())


def test_heads_without_a_pattern_say_so() -> None:
    T = len(TEXT)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    near = ((distance >= 0) & (distance < 5)).double()
    near /= near.sum(-1, keepdim=True)
    scattered = head_on((distance % 11 == 7) & (distance > 0), 0.95)
    assert phrase_of(uniform_attention(T), near, scattered) == [
        "many letters at once",
        "nearby letters",
        "no clear pattern",
    ]


def test_a_phrase_needs_a_share_of_the_attention() -> None:
    T = len(TEXT)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    weights = 0.82 * (distance == 20).double() + 0.18 * (distance == 1)
    weights[:20] = uniform_attention(T)[:20]
    previous = pattern_keys(list(TEXT))["previous"]
    assert phrase_of(weights, head_on(previous, 0.25), head_on(previous, 0.4)) == [
        "no clear pattern",
        "no clear pattern",
        PATTERNS["previous"],
    ]


def test_a_head_on_the_start_of_a_chinese_sentence_is_not_on_a_word() -> None:
    text = "北京的冬天很冷。他说今天要下雪了。今天他们都很高兴。"
    starts = torch.tensor([0, *(i + 1 for i, c in enumerate(text) if c == "。")])
    position = torch.arange(len(text))
    start = torch.stack([starts[starts <= t].max() for t in position])
    weights = head_on((start[:, None] == position), 0.9)
    assert phrase_of(weights, text=text) == ["no clear pattern"]


def test_a_description_has_the_share_of_its_pattern_and_that_of_uniform_attention() -> None:
    scores = mean_scores([(head_on(pattern_keys(list(TEXT))["previous"])[None, None], list(TEXT))])
    ((description,),) = describe_heads(scores)
    uniform = sum(1 / (t + 1) for t in range(1, len(TEXT))) / (len(TEXT) - 1)
    assert description.phrase == "the previous letter"
    assert description.uniform == pytest.approx(uniform, rel=1e-3)
    assert description.share == pytest.approx(0.6 + 0.4 * uniform, rel=1e-3)
    assert 1 < scores["distance"].values.item() < scores["distance"].uniform


def test_scores_are_means_over_windows() -> None:
    keys = pattern_keys(list(TEXT))
    previous, itself = (head_on(keys[name])[None, None] for name in ("previous", "self"))
    text = list(TEXT)
    ((mixed,),) = describe_heads(mean_scores([(previous, text), (previous, text), (itself, text)]))
    assert mixed.phrase == PATTERNS["previous"]
    ((alone,),) = describe_heads(mean_scores([(previous, text)]))
    assert mixed.share is not None
    assert alone.share is not None
    assert mixed.share < alone.share


def test_links_of_stories_come_before_patterns() -> None:
    text = "".join(stories(900, seed=1))
    T = len(text)
    found = list(links(text))

    def on(*kinds: str, pronoun: bool = False) -> torch.Tensor:
        weights = head_on(pattern_keys(list(text))["previous"], 0.5)
        for link in found:
            for kind in link.keys.keys() & {*kinds}:
                weights[link.query] = 0
                weights[link.query, list(link.keys["pronoun"] if pronoun else link.keys[kind][:1])] = 1
        return weights / weights.sum(-1, keepdim=True)

    heads = [on("she"), on("he"), on("she", "he", pronoun=True), on("copy"), on()]
    heads.append((on("she", "he") + on("she")) / 2)  # He half as clearly
    heads.append(0.35 * on("she") + 0.65 * on())  # too small a share
    weights = torch.stack(heads)[None]
    (described,) = describe_heads(mean_scores([(weights, list(text))], [(weights, text)]))
    assert [description.phrase for description in described] == [
        LINKS["she"], LINKS["he"], LINKS["pronoun"],
        LINKS["copy"], PATTERNS["previous"], LINKS["she"], PATTERNS["previous"],
    ]  # fmt: skip
    assert described[0].share == pytest.approx(1, abs=1e-3)  # of the link, not of the pattern that it follows, too
    to_both = uniform_attention(T)
    for link in found:
        if "she" in link.keys:  # as much on the other name
            to_both[link.query] = 0
            to_both[link.query, [link.keys["she"][0], link.keys["not she"][0]]] = 0.5
    ((both,),) = describe_heads(mean_scores([(to_both[None, None], list(text))], [(to_both[None, None], text)]))
    assert both == Description("many letters at once", None, None)


def test_a_model_is_scored_over_the_split_or_the_excerpt() -> None:
    loaded = checkpoint(context=32)
    model, split = load_transformer(loaded), loaded.tokenizer.encode("Speak, speak.\nAll:\n" * 20)

    def phrases(excerpt: np.ndarray, split: np.ndarray | None) -> object:
        return describe_heads(score_model(model, loaded.tokenizer, loaded.config.data, excerpt, split))

    assert phrases(split[:10], split) == phrases(split[:20], split) != phrases(split[:10], None)
    assert phrases(split[:10], None) == phrases(split[:10], split[:31]), "less than a window"
    assert phrases(split[:1], None)
