"""Taggers: an encoder of words in their sentence, a tag for each. A word is a token, or several, and may be spelled beside it.

Shapes: B sentences, S tokens, W words, C letters, D width, K tags.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import Text, TextEncoder, WordDropout, encoder_stack, text_encoder, text_front
from weft.models.encoder_tables import TaggerTable
from weft.nn.crf import CRF, LinearTags

SHORT = 0.9  # of the words of a batch are spelled apart from the longest, which would pad them
MULTIPLIER = 6364136223846793005  # Knuth's, of linear congruences


class Words(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, the tokens of all words, </s>; padded with 0
    keep: Tensor  # bool (B, S)
    first: Tensor  # int64 (B, W): where each word begins among the tokens
    real: Tensor  # bool (B, W), False on padding
    letters: Tensor | None  # int64 (B, W, C): letters and </s>, padded with 0; None where words are not spelled
    spelled: Tensor | None  # bool (B, W, C), at least one a word


def distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows (N, C) of numbers the places of those that differ, (U,), and for each row which of them it equals, (N,)."""
    # sums of powers modulo 2**64: two rows of one batch that share one are not to be met with
    powers = torch.tensor([pow(MULTIPLIER, at + 1, 1 << 63) for at in range(rows.size(1))], device=rows.device)
    _, where = torch.unique((rows * powers).sum(1), return_inverse=True)
    places = torch.empty(int(where.max()) + 1, dtype=torch.long, device=rows.device)
    places[where] = torch.arange(len(rows), device=rows.device)
    return places, where


class Spelling(nn.Module):
    """A vector for each word, from its letters (Lample et al. 2016, Ma & Hovy 2016)."""

    def __init__(self, encoder: TextEncoder, pool: nn.Module, *, outlet: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.pool, self.outlet = encoder, pool, outlet or nn.Identity()

    def forward(self, letters: Tensor, keep: Tensor) -> Tensor:
        """(B, W, C) -> (B, W, D)."""
        shape, letters, keep = letters.shape[:2], letters.flatten(0, 1), keep.flatten(0, 1)
        rows, where = distinct(letters.masked_fill(~keep, 0))
        sizes = keep[rows].sum(1)
        order, cut = sizes.argsort(), max(1, int(SHORT * len(rows)))
        parts = [
            self._spell(letters, keep, rows[part], int(sizes[part[-1]])) for part in order.tensor_split([cut]) if len(part)
        ]
        return torch.cat(parts)[order.argsort()][where].view(*shape, -1)

    def _spell(self, letters: Tensor, keep: Tensor, rows: Tensor, longest: int) -> Tensor:
        vectors: Tensor = self.outlet(self.pool(*self.encoder(Text(letters[rows, :longest], keep[rows, :longest]))))
        return vectors


class WordFront(nn.Module):
    """Tokens as vectors; where a word begins, its spelling stands beside it, or is `added`. Names of weights are those of a
    TextFront."""

    def __init__(
        self,
        embedding: nn.Embedding,
        spelling: Spelling | None,
        *,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
        added: bool = False,
    ) -> None:
        super().__init__()
        self.embedding, self.spelling, self.dropout, self.added = embedding, spelling, nn.Dropout(dropout), added
        self.forget = WordDropout(word_dropout)

    def forward(self, words: Words) -> tuple[Tensor, Tensor]:
        """(B, S, D), and what of it is real, (B, S)."""
        x, keep = self.dropout(self.embedding(self.forget(words.tokens))), words.keep
        if self.spelling is None or words.letters is None or words.spelled is None:
            return x, keep
        spelled = self.dropout(self.spelling(words.letters, words.spelled)).masked_fill(~words.real[..., None], 0.0)
        beside = spelled.new_zeros(*x.shape[:2], spelled.size(-1))
        # padding has its first token at 0, where <s> stands, and adds nothing there
        beside = beside.scatter_add(1, words.first[..., None].expand_as(spelled), spelled)
        return (x + beside if self.added else torch.cat([x, beside.to(x.dtype)], dim=-1)), keep


class Tagger(nn.Module):
    """P(tags | words)."""

    def __init__(self, encoder: TextEncoder, head: CRF | LinearTags, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.head, self.dropout = encoder, head, nn.Dropout(dropout)

    @property
    def longest(self) -> int | None:
        return self.encoder.longest

    def matrices(self) -> set[str]:
        return build.matrices(self.encoder.stack, "encoder.stack")

    def forward(self, words: Words) -> Tensor:
        """What the head reads: a vector for each word, (B, W, D)."""
        y, _ = self.encoder(words)
        found: Tensor = self.dropout(y.gather(1, words.first[..., None].expand(-1, -1, y.size(-1))))
        return found

    def loss(self, words: Words, tags: Tensor) -> Tensor:
        """Nats of each sentence's tags, (B,)."""
        nats: Tensor = self.head.loss(self(words), tags, words.real)
        return nats

    def tag(self, words: Words) -> Tensor:
        """The best tags, (B, W)."""
        best: Tensor = self.head.decode(self(words), words.real)
        return best


def tagger(table: TaggerTable, *, words: int, letters: int, tags: int, longest: int, allowed: Tensor | None) -> Tagger:
    """The model of a filled table, freshly initialised from torch's default generator; `allowed` is which tag may follow
    which, for heads that look at two."""
    spelling, inlet = None, table.read()
    added = table.traits.attends  # it reads vectors of its own width, and nothing else
    if (side := table.letters()) is not None:
        outlet = nn.Linear(side.width, inlet) if added else None
        encoder = text_encoder(side, words=letters, longest=longest)
        spelling = Spelling(encoder, build.pool(side.pool, side), outlet=outlet)
        inlet += 0 if added else side.width
    embedding = text_front(table, words=words, segments=False).embedding
    dropout = table.embedding_dropout or 0.0
    front = WordFront(embedding, spelling, dropout=dropout, word_dropout=table.word_dropout, added=added)
    encoder = TextEncoder(front, encoder_stack(table, longest=longest, inlet=inlet))
    head = CRF(table.width, tags, allowed=allowed) if table.head == "crf" else LinearTags(table.width, tags)
    return Tagger(encoder, head, dropout=table.dropout)
