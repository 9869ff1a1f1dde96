"""What comparisons ask of encoder-decoders: what was read and meant, line by line, and how outputs are split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.metrics.bleu_tokenizers import detect_tokenizer
from weft.metrics.items import ItemStatistics
from weft.runs.eval_data import eval_source, token_counts
from weft.tasks.compare_spec import Compare, Evidence, Predictions
from weft.tasks.seq2seq.data import references as references_of

if TYPE_CHECKING:
    from weft.runs.run import Run


def observe(run: Run[Any, Any], pairs: Sequence[tuple[str, str]], found: ItemStatistics) -> Predictions:
    """Line by line."""
    inputs, tokenizer = [source for source, _ in pairs], run.vocabulary.source
    read = tokenizer.encode_batch(inputs)
    counts, rarest = token_counts(run.directory, "train.source", tokenizer.vocab_size), None
    if counts is not None:  # an empty line has no token, and none that is rare
        rarest = np.array([counts[ids].min() if len(ids) else counts.max() for ids in read], np.int64)
    lengths = np.array([len(ids) for ids in read], np.int64)
    return Predictions(found, inputs, [target for _, target in pairs], lengths, "line", rarest=rarest)


def scored_against(evidence: Evidence) -> str:
    """What the signature of BLEU says of references and tokens."""
    signature = next((score.signature for score in evidence.scores if score.name == "bleu"), "")
    return " ".join(part for part in signature.split("|") if part.startswith(("nrefs:", "tok:")))


def one_tokenizer(runs: Sequence[Run[Any, Any]]) -> str:
    """How BLEU splits the outputs of all these runs: `none` where the targets of all are tokens with spaces between them, else
    by what the references of the first are written in."""
    spaced = all(run.vocabulary.target.type == "whitespace" for run in runs)
    references = () if spaced else references_of(eval_source(runs[0].directory, runs[0].config, None))
    return detect_tokenizer(references, spaced=spaced)


COMPARE = Compare(models="encoder-decoder", references=scored_against, tokenize=one_tokenizer)
