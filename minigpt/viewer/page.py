"""Build the page for a checkpoint and an excerpt: one HTML file that works offline.

`views.py` computes the data of each view, `packing.py` compresses it, and `document.py` puts it into `page.html`
together with the styles and scripts.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minigpt import __version__
from minigpt.errors import UserError, ViewError, count, escape
from minigpt.interpret.excerpt import Excerpt
from minigpt.interpret.export import untrained_warning
from minigpt.interpret.extract import extract
from minigpt.interpret.images import draw, to_png
from minigpt.model.load import load_transformer
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import Ids
from minigpt.viewer import views
from minigpt.viewer.document import assemble
from minigpt.viewer.packing import LEVELS


def build_page(
    checkpoint: Checkpoint,
    excerpt: Excerpt,
    *,
    layers: Sequence[int] | None = None,
    detail: bool = False,
    ablation_tokens: Ids | None = None,
    steps: Iterable[Checkpoint] = (),
    compare: Checkpoint | None = None,
    start: views.Start | None = None,
    argument: str = "",
    progress: Callable[[int, int], object] | None = None,
) -> str:
    """Return the page as HTML. The same checkpoint and excerpt give the same bytes.

    Args:
        checkpoint: The model to show.
        excerpt: The text that the model reads.
        layers: The layers to show. None shows all.
        detail: Add the worked example.
        ablation_tokens: Tokens over which to measure the loss without each head.
        steps: Checkpoints of the run, in order, to show how heads form during training.
        compare: Another model to run on the same text.
        start: What the page shows first.
        argument: What names the run in the commands that the page suggests. Default: its name.
        progress: Called after each ablated head with (heads done, total heads).

    Raises:
        ViewError: A view cannot show this model or excerpt.
    """
    config, model = checkpoint.config.model, load_transformer(checkpoint)
    selected, start = _check_layers(layers, config.n_layer), start or views.Start()
    if detail and len(excerpt.ids) > views.MAX_STAGES:
        raise ViewError(
            f"the worked example shows at most {views.MAX_STAGES} tokens, not {len(excerpt.ids)}",
            max_tokens=views.MAX_STAGES,
        )
    for name, index, shown in (("layer", start.layer, selected), ("head", start.head, range(config.n_head))):
        if index is not None and index not in shown:
            raise UserError(f"no {name} {index} on this page: it has {name}s {', '.join(map(str, shown))}")
    activations = views.select_layers(extract(model, excerpt.ids), selected)
    symbols = views.Symbols()
    data: dict[str, Any] = {
        "run": escape(checkpoint.run_name),
        "argument": argument or escape(checkpoint.run_name),
        "layers": selected,
        "heads": config.n_head,
        "levels": [round(level, 6) for level in LEVELS.tolist()],
        "text": views.text_view(excerpt, symbols),
        "attention": views.attention_view(activations),
        "stages": views.stages_view(activations),
        "scores": views.scores_view(activations, excerpt, selected, start),
        "predictions": views.predictions_view(model, checkpoint.tokenizer, activations, symbols),
        "characters": views.characters_view(model, checkpoint.tokenizer, activations, selected, symbols),
        "positions": views.positions_view(model, len(excerpt.ids)),
        "detail": views.detail_view(model, activations, selected) if detail else None,
        "training": views.training_view(steps, excerpt, selected, (config.n_layer, config.n_head)),
        "compare": views.compare_view(checkpoint, compare, excerpt, layers) if compare else None,
        # Ablation takes the longest. It comes last, so that other views report their errors first.
        "ablation": None
        if ablation_tokens is None
        else views.ablation_view(model, checkpoint.tokenizer, ablation_tokens, selected, progress),
    }
    data["symbols"] = symbols.rows()
    # 32 shades make the PNG a third smaller.
    preview = (31 * views.downsample(activations.weights).sqrt()).round().div(31).square()
    return assemble(
        data,
        to_png(draw(preview, selected, range(config.n_head))),
        title=f"{checkpoint.run_name}, step {checkpoint.metadata.step}",
        version=__version__,
        facts=_facts(checkpoint, excerpt),
        warnings=_warnings(checkpoint, excerpt, selected),
    )


def _check_layers(layers: Sequence[int] | None, count: int) -> list[int]:
    selected = sorted(set(range(count) if layers is None else layers))
    if not selected or not 0 <= selected[0] <= selected[-1] < count:
        raise UserError(f"no such layer: this model has layers 0 to {count - 1}")
    return selected


def _facts(checkpoint: Checkpoint, excerpt: Excerpt) -> dict[str, str]:
    config, metadata = checkpoint.config.model, checkpoint.metadata
    loss = "not measured" if metadata.state.validation_loss is None else f"{metadata.state.validation_loss:.4f} nats"
    return {
        "run": checkpoint.run_name,
        "step": f"{metadata.step:,}",
        "validation loss": loss,
        "model": f"{config.family}, {count(config.n_layer, 'layer')} × {count(config.n_head, 'head')}, "
        f"width {config.n_embd}, context {config.context}, {config.position} positions, "
        f"{metadata.parameters:,} parameters",
        "vocabulary": f"{count(metadata.vocab_size, 'token')} ({checkpoint.config.data.tokenizer})",
        "text": f"{count(len(excerpt.ids), 'token')}, {excerpt.source}",
    }


def _warnings(checkpoint: Checkpoint, excerpt: Excerpt, layers: Sequence[int]) -> list[str]:
    warnings = []
    if untrained := untrained_warning(checkpoint):
        warnings.append(f"{untrained} Its attention is random.")
    if excerpt.skipped:
        warnings.append(f"The text is too long: its first {excerpt.skipped:,} tokens are not shown.")
    if len(layers) < checkpoint.config.model.n_layer:
        warnings.append(f"This page shows {len(layers)} of {checkpoint.config.model.n_layer} layers.")
    return warnings
