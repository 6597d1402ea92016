"""The claims that depend on training, as questions about a trained run."""

from collections.abc import Callable, Collection

from minigpt.course.claims.claim import Result, location
from minigpt.course.claims.evidence import Evidence, Question
from minigpt.course.claims.trained_heads import (
    attention_selects,
    deeper_attends_further,
    deeper_leaves_the_line,
    every_head_helps,
    hard_attention_suffices,
    heads_differ,
    larger_outputs_matter_more,
    some_head_follows,
)
from minigpt.course.claims.trained_stories import some_head_copies, some_head_links
from minigpt.course.claims.trained_vectors import (
    embeddings_group_characters,
    embeddings_learn,
    layers_add_context,
    residual_gains_information,
    vectors_become_contextual,
)
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import Ids

PART = "What a trained model says"

QUESTIONS = (
    Question(1, "Does attention select some positions and ignore others?",
             "Attention selects some positions and ignores others.", ("000", "001", "004"), attention_selects),
    Question(16, "Does the vector at each position become a contextual version of its token?",
             "The vector at each position becomes a contextual version of its token.", ("000", "003"),
             vectors_become_contextual),
    Question(17, "Is the key with the largest weight enough?",
             "Using only the key with the largest weight is enough.", ("004",), hard_attention_suffices),
    Question(23, "Are embeddings of the same group of characters similar?",
             "Embeddings learn features: characters of the same group are similar.", ("002",),
             embeddings_group_characters),
    Question(33, "Do different heads attend to different things?",
             "Different heads attend to different things.", ("000", "001", "003"), heads_differ),
    Question(34, "Does one head attend mostly to the previous token?",
             "One head attends mostly to the previous token.", ("000",), some_head_follows("previous")),
    Question(36, "Does one head find related text: what followed the same character earlier?",
             "One head finds related text: what followed the same character earlier.", ("000",),
             some_head_follows("induction")),
    Question(37, "Does one head link a pronoun to its name?",
             "One head links a pronoun to its noun.", ("000",), some_head_links),
    Question(38, "Do deeper layers attend further back?",
             "Deeper layers attend further back.", ("000",), deeper_attends_further),
    Question(44, "Do heads with larger outputs matter more?",
             "The linear map after the heads amplifies good heads and weakens bad ones.", ("002",),
             larger_outputs_matter_more),
    Question(47, "Is every head needed?",
             "Ensembling always helps: every head is needed.", ("004",), every_head_helps),
    Question(48, "Do deeper layers look outside the line more?",
             "Deeper layers look outside the sentence.", ("000",), deeper_leaves_the_line),
    Question(87, "Does training change the direction of the embeddings?",
             "Embeddings are learned by backpropagation.", ("000", "002"), embeddings_learn),
    Question(104, "Does each layer add information about the next token?",
             "x holds information about its token, and more after each layer.", ("004",), residual_gains_information),
    Question(105, "Do deeper layers use more context?",
             "More layers use more context.", ("000",), layers_add_context),
    Question(109, "Does one head copy invented words?",
             "One head finds related text, anywhere in the past.", ("000",), some_head_copies),
)  # fmt: skip


def ask(
    loaded: Checkpoint, tokens: Ids, progress: Callable[[int], object] | None = None, only: Collection[str] = ()
) -> list[Result]:
    """Answer the questions about a trained model, measured on the start of `tokens`.

    Args:
        loaded: The checkpoint of the model.
        tokens: The validation split.
        progress: Called with 1 after each question, like `tqdm.update`.
        only: The numbers of the questions. By default, all of them.

    Raises:
        UserError: The context or the split is too short.
    """
    evidence, results = Evidence(loaded, tokens), []
    for question in QUESTIONS:
        if not only or str(question.id) in only:
            answer = question.check(evidence)
            results.append(
                Result(
                    question.id,
                    PART,
                    question.question,
                    answer.verdict,
                    question.notes_say,
                    None,
                    answer.measured,
                    [],
                    location(question.check),
                    answer.heads,
                )
            )
        if progress:
            progress(1)
    return results
