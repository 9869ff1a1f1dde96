"""Text embeddings: pooled encoder outputs.

Shapes: N texts, S positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.data.batching import map_tensors, pad_lines
from weft.data.bucketing import length_batches
from weft.data.corpus import Corpus, corpus_from_lines
from weft.errors import UsageError, unknown_name
from weft.tasks.spec import Progress, phase
from weft.text.reading import check_text
from weft.text.tokenizers import Tokenizer
from weft.training.objective import ProgressCallback

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from weft.data.tag_batching import Sentences
    from weft.runs.run import AnyRun

BATCH_TOKENS = 1024  # positions per batch; larger batches do not fit into the cache of a CPU
POOLINGS = ("mean", "first")  # mean over all positions, including <s> and </s>; vector of <s>


class EmbeddingOutput(NamedTuple):
    """The vectors of N texts, and whether each text was truncated."""

    vectors: np.ndarray  # float32 (N, D)
    truncated: np.ndarray  # bool (N,)


def pool_vectors(y: Tensor, token_mask: Tensor | None, pooling: str) -> Tensor:
    """Pool encoder outputs: (B, S, D) -> (B, D)."""
    if pooling == "first":
        return y[:, 0]
    if token_mask is None:
        return y.mean(1)
    is_token = token_mask[..., None].to(y.dtype)
    return (y * is_token).sum(1) / is_token.sum(1)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], max_length: int | None) -> tuple[Corpus, np.ndarray]:
    """Tokenize texts and truncate them to `max_length` positions; also returns bool (N,): which texts were truncated."""
    corpus = corpus_from_lines(tokenizer, texts)
    lengths = np.diff(corpus.line_starts())
    limit = int(lengths.max(initial=1)) if max_length is None else max_length - 1  # without <s>
    is_truncated = lengths > limit
    if not is_truncated.any():
        return corpus, is_truncated
    positions = np.arange(len(corpus.tokens)) - np.repeat(corpus.line_starts()[:-1], lengths)
    eos_positions = np.repeat(lengths, lengths) - 1
    keep = (positions < limit - 1) | (positions == eos_positions)
    starts = np.concatenate([[0], np.cumsum(np.minimum(lengths, limit))])
    return Corpus(corpus.name, corpus.tokens[keep], starts, corpus.cumulative_counts, corpus.tokenizer), is_truncated


def check_pooling(pooling: str) -> None:
    if pooling not in POOLINGS:
        raise UsageError("pooling", *unknown_name("pooling", pooling, POOLINGS))


def first_words(tokenizer: Tokenizer, words: Sequence[str], max_length: int) -> list[str]:
    """The first words of a sentence, as many as fit into `max_length` tokens with <s> and </s>."""
    ends = 2 + np.cumsum(tokenizer.encode_concatenated(words)[1])
    return list(words[: int(np.searchsorted(ends, max_length, side="right"))])


def _embed_batches(
    embed_rows: Callable[[np.ndarray], Tensor], lengths: np.ndarray, progress: ProgressCallback | None
) -> np.ndarray:
    """float32 (N, D): the vectors of all texts, in batches of similar length, which need little padding."""
    import torch

    embeddings: np.ndarray | None = None
    done = 0
    for members in length_batches(lengths, batch_tokens=BATCH_TOKENS):
        with torch.inference_mode():
            vectors = embed_rows(members).float().cpu().numpy()
        embeddings = np.empty((len(lengths), vectors.shape[1]), np.float32) if embeddings is None else embeddings
        embeddings[members] = vectors
        done += len(members)
        if progress is not None:
            progress(done, len(lengths))
    return np.empty((0, 0), np.float32) if embeddings is None else embeddings


def embed(
    encoder: Any, corpus: Corpus, *, pooling: str, device: torch.device, progress: ProgressCallback | None = None
) -> np.ndarray:
    """float32 (N, D): one vector per line."""
    from weft.models.encoder import EncoderInput

    def embed_rows(lines: np.ndarray) -> Tensor:
        y, token_mask = encoder(EncoderInput(*(part.to(device) for part in pad_lines(corpus, lines))))
        return pool_vectors(y, token_mask, pooling)

    return _embed_batches(embed_rows, np.diff(corpus.line_starts()) + 1, progress)


def embed_words(
    encoder: Any, data: Sentences, *, pooling: str, device: torch.device, progress: ProgressCallback | None = None
) -> np.ndarray:
    """float32 (N, D): one vector per sentence."""
    from weft.models.tagger import TaggerInput

    def embed_rows(sentences: np.ndarray) -> Tensor:
        words = map_tensors(TaggerInput(*data.batch(sentences)[:-1]), lambda part: part.to(device))
        y, token_mask = encoder(words)
        return pool_vectors(y, token_mask, pooling)

    return _embed_batches(embed_rows, data.lengths(), progress)


def embed_texts(
    run: AnyRun, tokenizer: Tokenizer, texts: Sequence[str], pooling: str, *, max_length: int | None, progress: Progress | None
) -> EmbeddingOutput:
    """Embed texts with a run whose model has an `encoder`; texts of more than `max_length` positions are truncated."""
    check_pooling(pooling)
    valid = [check_text(text, f"line {number}") for number, text in enumerate(texts, 1)]
    corpus, truncated = encode_texts(tokenizer, valid, max_length)
    done = phase(progress, "embedding")
    return EmbeddingOutput(embed(run.model.encoder, corpus, pooling=pooling, device=run.device, progress=done), truncated)
