"""Encoder-decoders in comparisons: inputs and references by line, and the tokenizer of BLEU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.metrics.bleu_tokenizers import detect_tokenizer
from weft.metrics.items import ItemStatistics
from weft.runs.eval_data import eval_source, token_counts
from weft.tasks.compare_spec import Compare, EvaluatedRun, Predictions
from weft.tasks.seq2seq.data import references as references_of

if TYPE_CHECKING:
    from weft.runs.run import Run


def item_predictions(run: Run[Any, Any], pairs: Sequence[tuple[str, str]], items: ItemStatistics) -> Predictions:
    """Statistics of each line, with its source, target, length and rarest token."""
    inputs, tokenizer = [source for source, _ in pairs], run.vocabulary.source
    token_ids = tokenizer.encode_batch(inputs)
    counts, min_frequencies = token_counts(run.directory, run.config, "train.source", tokenizer.vocab_size), None
    if counts is not None:  # an empty line counts as frequent
        min_frequencies = np.array([counts[ids].min() if len(ids) else counts.max() for ids in token_ids], np.int64)
    lengths = np.array([len(ids) for ids in token_ids], np.int64)
    return Predictions(items, inputs, [target for _, target in pairs], lengths, "line", min_frequencies=min_frequencies)


def bleu_setup(run: EvaluatedRun) -> str:
    """The number of references and the tokenizer from the signature of BLEU."""
    signature = next((score.signature for score in run.scores if score.name == "bleu"), "")
    return " ".join(part for part in signature.split("|") if part.startswith(("nrefs:", "tok:")))


def shared_bleu_tokenizer(runs: Sequence[Run[Any, Any]]) -> str:
    """The tokenizer of BLEU for all these runs: `none` if all targets are tokens separated by spaces, otherwise chosen by the
    references of the first run."""
    spaced = all(run.vocabulary.target.type == "whitespace" for run in runs)
    references = () if spaced else references_of(eval_source(runs[0].directory, runs[0].config, None))
    return detect_tokenizer(references, spaced=spaced)


COMPARE = Compare(model_noun="encoder-decoder", reference_format=bleu_setup, bleu_tokenizer=shared_bleu_tokenizer)
