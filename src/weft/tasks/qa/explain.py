"""Explanations of question answering: a question and a passage, with the start and end of the answer as outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.errors import DataError, UsageError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, make_side, repeat_tokens, special_token, token_spans
from weft.explain.options import ExplainConfig
from weft.explain.stacks import Stack
from weft.models.encoder import EncoderInput
from weft.tasks.qa.answer import AnswerPrediction
from weft.tasks.qa.predict import Pair
from weft.tasks.spec import Explain

if TYPE_CHECKING:
    from weft.runs.run import Run


def stacks(run: Run[Pair, AnswerPrediction]) -> list[Stack]:
    return [Stack("encoder", "encoder.stack", "text", run.config.model)]


def encode_input(run: Run[Pair, AnswerPrediction], text: str, options: ExplainConfig) -> ModelInput:
    """A question, a tab and a passage. The explained outputs are the start and end of the answer, as positions."""
    tokenizer, model, max_length = run.vocabulary, run.model, run.config.data.max_length
    parts = text.split("\t")
    if len(parts) != 2:
        raise DataError("input", f"expected a question and a passage separated by a tab, got {len(parts)} columns")
    passage_offset = len(parts[0]) + 1  # in characters
    question, passage = (token_spans(tokenizer, *part) for part in zip(parts, (0, passage_offset), strict=True))
    if not (question and passage):
        raise DataError("input", f"empty {'passage' if question else 'question'}")
    bos, eos = special_token(tokenizer, tokenizer.bos_id), special_token(tokenizer, tokenizer.eos_id)
    side = make_side("text", "encoder.embedder", [bos, *question, eos, *passage, eos])
    if len(side.tokens) > max_length:
        raise DataError("input", f"{len(side.tokens):,} tokens exceed the model's limit of {max_length}", "shorten it")
    is_passage = torch.arange(len(side.tokens)) >= len(question) + 2

    def log_probs(outputs: Tensor) -> Tensor:
        """(B, S): log-probabilities of all positions as the start (output 0) or the end (output 1) of the answer."""
        tokens = repeat_tokens(side.tokens, outputs)
        segments = is_passage.to(outputs.device).long().expand(len(outputs), -1)
        logits = model(EncoderInput(tokens, torch.ones_like(tokens, dtype=torch.bool), segments))
        result: Tensor = logits.log_softmax(1)[torch.arange(len(outputs)), :, outputs]
        return result

    def first_and_last(start: int, end: int) -> list[int]:
        """The positions of the first and last token of a character span of the passage; [] if it has no tokens."""
        start, end = passage_offset + start, passage_offset + end
        positions = [i for i, token in enumerate(side.spans) if is_passage[i] and token.end > start and token.start < end]
        return [positions[0], positions[-1]] if positions else []

    def predicted() -> list[tuple[int, int]]:
        answer = run.predict((parts[0], parts[1]))
        if answer.start is None or answer.end is None:
            return [(0, 0), (1, 0)]  # the position of <s> stands for no answer
        return list(enumerate(first_and_last(answer.start, answer.end)))

    choices = None
    if options.target is not None:
        start = parts[1].find(options.target)
        choices = first_and_last(start, start + len(options.target)) if start >= 0 else []
        if not choices:
            raise UsageError("target", f"{options.target!r} does not occur in the passage")
    outputs, spans = [TokenSpan("start", 0, 0), TokenSpan("end", 0, 0)], side.spans
    return ModelInput(
        model,
        [side],
        log_probs,
        outputs,
        choices,
        lambda i: spans[i].text,
        predict=predicted,
        stacks=stacks(run),
    )


EXPLAIN = Explain(encode_input, stacks, has_positions=True, reads_records=True)
