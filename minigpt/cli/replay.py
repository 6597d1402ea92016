"""Train a run again, to check that its weights are bitwise identical."""

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from minigpt.cli.input import run_dataset
from minigpt.errors import CheckpointError, UserError, escape
from minigpt.paths import FRAMES, is_run, run_of
from minigpt.storage.checkpoint import Arrays, Checkpoint, in_16_bits, load_checkpoint, read_checkpoint
from minigpt.storage.records import read_starts
from minigpt.storage.runs import checkpoint_steps, is_checkpoint, step_folder
from minigpt.training.compilation import choose_loss
from minigpt.training.learner import make_learner
from minigpt.training.loop import Training


def replay(checkpoint: Checkpoint, steps: Callable[[range], Iterable[int]] = iter) -> list[str]:
    """Train the run of a checkpoint again up to its step, and return the names of the tensors that differ.

    Compare the frames of the run on the way. Nothing is written. The run may have been interrupted, resumed and made
    longer, but not resumed with another `train.micro_batch_size` or on another kind of machine.

    Args:
        steps: Wraps the steps to train, to show progress.

    Raises:
        TextMismatchError: The text is missing or has changed.
        UserError: The last digits cannot be compared, or the checkpoint was imported.
        CheckpointError: A frame is damaged or of another run, or the run started from a checkpoint that is missing or
            has changed.
    """
    config, metadata = checkpoint.config, checkpoint.metadata
    if metadata.imported:
        raise UserError(f"cannot replay run {escape(checkpoint.run_name)}: it was imported from {metadata.imported}")
    data = run_dataset(checkpoint)
    start = _start(checkpoint)
    learner = make_learner(config, data, saved=metadata.runtime, start=start)
    learner.use_loss(choose_loss(learner, data.train, lambda line: None))
    if changes := learner.environment().changes(metadata.runtime):
        raise UserError(f"cannot compare bitwise here: {escape(', '.join(changes))}")
    durations = _durations(checkpoint)
    training = Training(config, Path(), data, learner)
    run = run_of(checkpoint.path)
    frames = {step: step_folder(run, step, FRAMES) for step in checkpoint_steps(run, FRAMES)} if run else {}
    different: list[str] = []
    for step in chain([0], steps(range(1, metadata.step + 1))):
        if step:
            training.steps = durations.get(step - 1, training.steps)  # the learning rate depends on it
            training.step()
        if step in frames:
            frame = read_checkpoint(frames[step], checkpoint)
            weights = in_16_bits(learner.snapshot(with_optimizer=False).weights)
            different += [f"{name} at step {step}" for name in _different(in_16_bits(frame.weights), weights)]
    return different + _different(checkpoint.weights, learner.snapshot(with_optimizer=False).weights)


def _different(arrays: Arrays, others: Arrays) -> list[str]:
    """Return the names of the arrays that differ from others of the same name."""
    return [name for name, array in arrays.items() if array.tobytes() != others[name].tobytes()]


def _durations(checkpoint: Checkpoint) -> dict[int, int]:
    """Return the duration that the run had from each of its starts, by step. A resume may have changed it.

    Raises:
        UserError: The run was started in processes whose sums depend on their number.
    """
    starts, run = dict[int, dict[str, Any]](), run_of(checkpoint.path)
    for start in read_starts(run) if run else ():
        if isinstance(step := start.get("step"), int) and step < checkpoint.metadata.step:
            starts = {at: before for at, before in starts.items() if at < step} | {step: start}  # it repeats the others
    for step, start in starts.items():
        if (sums := start.get("sums", "exact")) != "exact":
            raise UserError(f"cannot compare bitwise: {escape(sums)} added up the gradients after step {step}")
    durations = {step: start.get("steps") for step, start in starts.items()}
    return {step: steps for step, steps in durations.items() if isinstance(steps, int) and steps > 0}


def _start(checkpoint: Checkpoint) -> Checkpoint | None:
    """Return the checkpoint from which a run started, or None if its first weights were random."""
    origin = checkpoint.metadata.origin
    if origin is None:
        return None
    beside = checkpoint.path.absolute().parents[2] / origin.run
    name = str(beside) if is_run(beside) or is_checkpoint(beside) else origin.run
    try:
        start = load_checkpoint(name, None if is_checkpoint(name) else origin.step)
    except UserError as error:
        raise CheckpointError(f"cannot replay run {escape(checkpoint.run_name)} from its start: {error}") from error
    if (start.metadata.step, start.as_origin.sha256) != (origin.step, origin.sha256):
        raise CheckpointError(
            f"step {origin.step} of run {escape(origin.run)} has changed since this run started there"
        )
    return start
