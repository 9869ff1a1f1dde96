"""Taggers as they are explained: a sentence, and the tag of each word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weft.data.corpus import lines_of
from weft.data.tag_batching import Sentences
from weft.errors import DataError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, label, make_side, refuse, special, token_spans
from weft.explain.options import ExplainConfig
from weft.explain.stacks import Stack
from weft.models.tagger import TaggerInput
from weft.tasks.spec import Explain
from weft.tasks.tagging.predict import Sentence, TagPrediction

if TYPE_CHECKING:
    from weft.runs.run import Run


def stacks(run: Run[Sentence, TagPrediction]) -> list[Stack]:
    return [Stack("encoder", "encoder.stack", "text", run.config.model)]


def read(run: Run[Sentence, TagPrediction], text: str, options: ExplainConfig) -> ModelInput:
    tokenizer, model, device = run.vocabulary.tokenizer, run.model, run.device
    refuse(run.predictor.invalid_inputs([text]))
    places = [TokenSpan(found[0], found.start(), found.end()) for found in re.finditer(r"\S+", text)]
    if not places:
        raise DataError("input", "empty text")
    words = [place.text for place in places]
    letters = None if run.vocabulary.char_tokenizer is None else lines_of(run.vocabulary.char_tokenizer, words)
    edges, none = np.array([0, len(words)]), np.zeros(len(words), np.int64)
    batch = Sentences(lines_of(tokenizer, words), letters, edges, none).batch(np.array([0]))
    found = [one for place in places for one in token_spans(tokenizer, place.text, place.start)]
    tokens = [special(tokenizer, tokenizer.bos_id), *found, special(tokenizer, tokenizer.eos_id)]

    def say(at: Tensor) -> Tensor:
        parts: list[Any] = [part if part is None else part.to(device).expand(len(at), *part.shape[1:]) for part in batch[:-1]]
        read = TaggerInput(*parts)
        fractions = model.head.marginals(model(read), read.word_mask)[torch.arange(len(at)), at]
        said: Tensor = fractions.clamp(min=torch.finfo(fractions.dtype).tiny).log()
        return said

    def said() -> list[tuple[int, int]]:
        """A chain's best tags, which are not the best of each word."""
        return [(place, label(run, tag)) for place, tag in enumerate(run.predict([words])[0].tags)]

    choices = None if options.target is None else [label(run, options.target)] * len(places)
    return ModelInput(
        model,
        [make_side("text", "encoder.embedder", tokens)],
        say,
        places,
        choices,
        lambda at: run.labels[at],
        said=said,
        stacks=stacks(run),
    )


EXPLAIN = Explain(read, stacks, tokenizers=lambda run: [run.vocabulary.tokenizer], has_positions=True)
