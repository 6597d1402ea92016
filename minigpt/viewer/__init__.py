"""One page in one file, without a network, to look into a checkpoint with: what it does with one text.

`views.py` says what each view shows, `packing.py` makes it small, `document.py` puts the file together from
`page.html`, `page.css` and the scripts, which stand beside it and draw.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minigpt import __version__
from minigpt.errors import UserError, escape
from minigpt.interpret import picture, record
from minigpt.interpret.extract import extract
from minigpt.interpret.passage import Excerpt
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import Ids
from minigpt.viewer import views
from minigpt.viewer.document import assemble
from minigpt.viewer.packing import LEVELS

LARGE, TOO_LARGE = 4_000_000, 16_000_000
"""Bytes from which a page is said to be large, and not made unless asked for by force."""


def inspect_page(
    loaded: Checkpoint,
    passage: Excerpt,
    *,
    layers: Sequence[int] | None = None,
    detail: bool = False,
    ablate: Ids | None = None,
    steps: Iterable[Checkpoint] = (),
    compare: Checkpoint | None = None,
    force: bool = False,
    say: Callable[[str], object] = lambda line: None,
    progress: Callable[[int, int], object] | None = None,
) -> str:
    """Return the page about what `loaded` does with `passage`: the same bytes for the same checkpoint and text.

    `layers` limits it to these; `detail` adds the worked example; `ablate` are the first tokens of the validation
    split, over which the loss is measured with each head silenced; `steps` are the checkpoints of the film and
    `compare` another run. `say` is told what is worth knowing, `progress` how many heads are silenced, and of how many.
    Raises UserError for what cannot be shown, and for a page over 16 MB without `force`.
    """
    config = loaded.config.model
    chosen = _layers(layers, config.n_layer)
    if detail and len(passage.ids) > views.STAGED:
        most = views.STAGED
        raise UserError(f"--detail shows {most} characters at most, not {len(passage.ids)}; add --max-chars {most}")
    whole = extract(loaded.model, passage.ids)
    seen = views.chosen_layers(whole, chosen)
    signs = views.Signs()
    data: dict[str, Any] = {
        "run": escape(views.run_name(loaded)),
        "layers": chosen,
        "heads": config.n_head,
        "levels": [round(level, 6) for level in LEVELS.tolist()],
        "text": views.text_view(passage, signs),
        "attention": views.attention_view(seen),
        "stages": views.stages_view(seen),
        "scores": views.scores_view(seen, passage),
        "predictions": views.predictions_view(loaded, seen, signs),
        "characters": views.characters_view(loaded, seen, passage, chosen, signs),
        "positions": views.positions_view(loaded.model, len(passage.ids)),
        "detail": views.detail_view(loaded.model, seen, chosen) if detail else None,
        "film": views.film_view(steps, passage, chosen, (config.n_layer, config.n_head)),
        "compare": views.compare_view(loaded, compare, passage, chosen if layers else None) if compare else None,
        # The longest last, after what the others may refuse.
        "ablation": views.ablation_view(loaded, ablate, chosen, progress) if ablate is not None else None,
    }
    data["signs"] = signs.rows()
    small = (31 * views.shrunk(seen.weights, views.SMALL).sqrt()).round().div(31).square()  # 32 shades are a third less
    page = assemble(
        data,
        picture.png(picture.grid(small, chosen, range(config.n_head))),
        title=f"{views.run_name(loaded)}, step {loaded.meta.step}",
        version=__version__,
        facts=facts(loaded, passage),
        warnings=warnings(loaded, passage, chosen),
    )
    _refuse_large(len(page.encode()), force, say)
    return page


def facts(loaded: Checkpoint, passage: Excerpt) -> dict[str, str]:
    """Return what is shown of where the page comes from."""
    config, meta = loaded.config.model, loaded.meta
    loss = "not measured" if meta.validation_loss is None else f"{meta.validation_loss:.4f} nats"
    return {
        "run": views.run_name(loaded),
        "step": f"{meta.step:,}",
        "validation loss, measured last": loss,
        "model": f"{config.family}, {config.n_layer} layers x {config.n_head} heads, width {config.n_embd}, "
        f"context {config.context}, positions {config.position}, {meta.parameters:,} parameters",
        "vocabulary": f"{loaded.config.data.tokenizer}, {meta.vocab_size:,}",
        "text": f"{len(passage.ids):,} tokens, {passage.source}",
    }


def warnings(loaded: Checkpoint, passage: Excerpt, layers: Sequence[int]) -> list[str]:
    """Return what a reader must know before believing anything on the page."""
    doubt = record.doubt(loaded)
    found = [f"{doubt} What its heads look at is chance."] if doubt else []
    if passage.left_out:
        found.append(f"The text was cut: {passage.left_out:,} tokens before these are left out.")
    if len(layers) < loaded.config.model.n_layer:
        found.append(f"The page shows {len(layers)} of {loaded.config.model.n_layer} layers.")
    return found


def _layers(layers: Sequence[int] | None, count: int) -> list[int]:
    chosen = sorted(set(range(count) if layers is None else layers))
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < count:
        raise UserError(f"--layers: this model has layers 0 to {count - 1}")
    return chosen


def _refuse_large(size: int, force: bool, say: Callable[[str], object]) -> None:
    shrink = "fewer --layers or --max-chars make it smaller"
    if size > TOO_LARGE and not force:
        raise UserError(f"the page would have {size / 1e6:.1f} MB, more than 16 MB; {shrink}, --force makes it anyway")
    if size > LARGE:
        say(f"the page has {size / 1e6:.1f} MB; {shrink}")
