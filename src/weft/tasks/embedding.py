"""Vectors of texts: what an encoder says of each, pooled.

Shapes: N texts, S positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.config import no_such
from weft.data.corpus import Corpus, lines_of
from weft.data.grouped import in_groups
from weft.data.order import changed, padded
from weft.errors import UsageError
from weft.tasks.spec import Progress, phase
from weft.text.gate import clean
from weft.text.tokenizers import Tokenizer
from weft.train.objective import Watch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from weft.data.tag_order import Sentences
    from weft.runs.run import AnyRun

BATCH = 1024  # positions computed at once: as many as stay in a processor's cache
POOLED = ("mean", "first")  # of all positions, <s> and </s> among them; of <s>


class Embedded(NamedTuple):
    """Vectors of texts, and which of the texts were cut to what the model reads."""

    vectors: np.ndarray  # float32 (N, D)
    cut: np.ndarray  # bool (N,)


def pooled(y: Tensor, keep: Tensor | None, pool: str) -> Tensor:
    """(B, S, D) -> (B, D)."""
    if pool == "first":
        return y[:, 0]
    if keep is None:
        return y.mean(1)
    real = keep[..., None].to(y.dtype)
    return (y * real).sum(1) / real.sum(1)


def read(tokenizer: Tokenizer, texts: Sequence[str], longest: int | None) -> tuple[Corpus, np.ndarray]:
    """Texts as lines of tokens, each cut to what the model reads; bool (N,): which were cut."""
    corpus = lines_of(tokenizer, texts)
    lengths = np.diff(corpus.line_starts())
    most = int(lengths.max(initial=1)) if longest is None else longest - 1  # <s> is a position, too
    over = lengths > most
    if not over.any():
        return corpus, over
    at = np.arange(len(corpus.tokens)) - np.repeat(corpus.line_starts()[:-1], lengths)
    ends = np.repeat(lengths, lengths) - 1
    kept = (at < most - 1) | (at == ends)  # each before its </s>
    starts = np.concatenate([[0], np.cumsum(np.minimum(lengths, most))])
    return Corpus(corpus.name, corpus.tokens[kept], starts, corpus.marks, corpus.tokenizer), over


def check_pool(pool: str) -> None:
    if pool not in POOLED:
        raise UsageError(f"embed: {no_such('pool', pool, POOLED)}")


def first_words(tokenizer: Tokenizer, words: Sequence[str], longest: int) -> list[str]:
    """As many words of a sentence as the model reads, <s> and </s> counted."""
    ends = 2 + np.cumsum(tokenizer.encode_flat(words)[1])
    return list(words[: int(np.searchsorted(ends, longest, side="right"))])


def embed(encoder: Any, corpus: Corpus, *, pool: str, device: torch.device, watch: Watch | None = None) -> np.ndarray:
    """float32 (N, D): a vector for each line."""
    from weft.models.encoder import Text

    def say(lines: np.ndarray) -> Tensor:
        y, keep = encoder(Text(*(part.to(device) for part in padded(corpus, lines))))
        return pooled(y, keep, pool)

    return _in_groups(say, np.diff(corpus.line_starts()) + 1, watch)


def embed_words(encoder: Any, data: Sentences, *, pool: str, device: torch.device, watch: Watch | None = None) -> np.ndarray:
    """float32 (N, D): a vector for each sentence of words."""
    from weft.models.tagger import Words

    def say(sentences: np.ndarray) -> Tensor:
        words = changed(Words(*data.batch(sentences)[:-1]), lambda part: part.to(device))
        y, keep = encoder(words)
        return pooled(y, keep, pool)

    return _in_groups(say, data.lengths(), watch)


def embed_texts(
    run: AnyRun, tokenizer: Tokenizer, texts: Sequence[str], pool: str, *, longest: int | None, progress: Progress | None
) -> Embedded:
    """A vector for each text by a run whose model has an `encoder`; a text of more than `longest` positions is truncated."""
    check_pool(pool)
    valid = [clean(text, f"line {number}") for number, text in enumerate(texts, 1)]
    corpus, truncated = read(tokenizer, valid, longest)
    watch = phase(progress, "embedding")
    return Embedded(embed(run.model.encoder, corpus, pool=pool, device=run.device, watch=watch), truncated)


def _in_groups(say: Callable[[np.ndarray], Tensor], lengths: np.ndarray, watch: Watch | None) -> np.ndarray:
    """What `say` makes of each text. Those of like length are read together, so that little padding is computed."""
    import torch

    found: np.ndarray | None = None
    done = 0
    for members in in_groups(lengths, batch_tokens=BATCH):
        with torch.inference_mode():
            vectors = say(members).float().cpu().numpy()
        found = np.empty((len(lengths), vectors.shape[1]), np.float32) if found is None else found
        found[members] = vectors
        done += len(members)
        if watch is not None:
            watch(done, len(lengths))
    return np.empty((0, 0), np.float32) if found is None else found
