"""Taggers: an encoder of words in their sentence, a tag for each. A word is a token, or several, and may be spelled beside it.

Shapes: B sentences, S tokens, W words, C letters, D width, K tags.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import EncoderInput, TextEncoder, WordDropout, encoder_stack, text_embedder, text_encoder
from weft.models.encoder_config import TaggerConfig
from weft.nn.crf import CRF, LinearTagHead

SHORT = 0.9  # of the words of a batch are spelled apart from the longest, which would pad them
MULTIPLIER = 6364136223846793005  # Knuth's, of linear congruences


class TaggerInput(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, the tokens of all words, </s>; padded with 0
    token_mask: Tensor  # bool (B, S)
    first: Tensor  # int64 (B, W): where each word begins among the tokens
    word_mask: Tensor  # bool (B, W), False on padding
    char_ids: Tensor | None  # int64 (B, W, C): letters and </s>, padded with 0; None where words are not spelled
    char_mask: Tensor | None  # bool (B, W, C), at least one a word


def unique_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows (N, C) of numbers the places of those that differ, (U,), and for each row which of them it equals, (N,)."""
    # sums of powers modulo 2**64: two rows of one batch that share one are not to be met with
    powers = torch.tensor([pow(MULTIPLIER, at + 1, 1 << 63) for at in range(rows.size(1))], device=rows.device)
    _, where = torch.unique((rows * powers).sum(1), return_inverse=True)
    places = torch.empty(int(where.max()) + 1, dtype=torch.long, device=rows.device)
    places[where] = torch.arange(len(rows), device=rows.device)
    return places, where


class CharEncoder(nn.Module):
    """A vector for each word, from its letters (Lample et al. 2016, Ma & Hovy 2016)."""

    def __init__(self, encoder: TextEncoder, pooling: nn.Module, *, out_proj: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.pooling, self.out_proj = encoder, pooling, out_proj or nn.Identity()

    def forward(self, char_ids: Tensor, token_mask: Tensor) -> Tensor:
        """(B, W, C) -> (B, W, D)."""
        shape, char_ids, token_mask = char_ids.shape[:2], char_ids.flatten(0, 1), token_mask.flatten(0, 1)
        rows, where = unique_rows(char_ids.masked_fill(~token_mask, 0))
        sizes = token_mask[rows].sum(1)
        order, cut = sizes.argsort(), max(1, int(SHORT * len(rows)))
        parts = [
            self._encode_chars(char_ids, token_mask, rows[part], int(sizes[part[-1]]))
            for part in order.tensor_split([cut])
            if len(part)
        ]
        return torch.cat(parts)[order.argsort()][where].view(*shape, -1)

    def _encode_chars(self, char_ids: Tensor, token_mask: Tensor, rows: Tensor, max_positions: int) -> Tensor:
        vectors: Tensor = self.out_proj(
            self.pooling(*self.encoder(EncoderInput(char_ids[rows, :max_positions], token_mask[rows, :max_positions])))
        )
        return vectors


class WordEmbedder(nn.Module):
    """Tokens as vectors; where a word begins, its spelling stands beside it, or is `added`. Names of weights are those of a
    TextFront."""

    def __init__(
        self,
        embedding: nn.Embedding,
        char_encoder: CharEncoder | None,
        *,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
        added: bool = False,
    ) -> None:
        super().__init__()
        self.embedding, self.char_encoder, self.dropout, self.added = embedding, char_encoder, nn.Dropout(dropout), added
        self.word_dropout = WordDropout(word_dropout)

    def forward(self, words: TaggerInput) -> tuple[Tensor, Tensor]:
        """(B, S, D), and what of it is real, (B, S)."""
        x, token_mask = self.dropout(self.embedding(self.word_dropout(words.tokens))), words.token_mask
        if self.char_encoder is None or words.char_ids is None or words.char_mask is None:
            return x, token_mask
        spelled = self.dropout(self.char_encoder(words.char_ids, words.char_mask)).masked_fill(~words.word_mask[..., None], 0.0)
        beside = spelled.new_zeros(*x.shape[:2], spelled.size(-1))
        # padding has its first token at 0, where <s> stands, and adds nothing there
        beside = beside.scatter_add(1, words.first[..., None].expand_as(spelled), spelled)
        return (x + beside if self.added else torch.cat([x, beside.to(x.dtype)], dim=-1)), token_mask


class TaggerRun(nn.Module):
    """P(tags | words)."""

    def __init__(self, encoder: TextEncoder, head: CRF | LinearTagHead, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.head, self.dropout = encoder, head, nn.Dropout(dropout)

    @property
    def max_positions(self) -> int | None:
        return self.encoder.max_positions

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack")

    def forward(self, words: TaggerInput) -> Tensor:
        """What the head reads: a vector for each word, (B, W, D)."""
        y, _ = self.encoder(words)
        found: Tensor = self.dropout(y.gather(1, words.first[..., None].expand(-1, -1, y.size(-1))))
        return found

    def loss(self, words: TaggerInput, tags: Tensor) -> Tensor:
        """Nats of each sentence's tags, (B,)."""
        nats: Tensor = self.head.loss(self(words), tags, words.word_mask)
        return nats

    def tag(self, words: TaggerInput) -> Tensor:
        """The best tags, (B, W)."""
        best: Tensor = self.head.decode(self(words), words.word_mask)
        return best


def tagger(
    config: TaggerConfig, *, vocab_size: int, char_vocab_size: int, tags: int, max_positions: int, allowed: Tensor | None
) -> TaggerRun:
    """The model of a filled table, freshly initialised from torch's default generator; `allowed` is which tag may follow
    which, for heads that look at two."""
    spelling, input_size = None, config.input_dim()
    added = config.traits.attends  # it reads vectors of its own width, and nothing else
    if (side := config.resolved_char_encoder()) is not None:
        outlet = nn.Linear(side.hidden_size, input_size) if added else None
        encoder = text_encoder(side, vocab_size=char_vocab_size, max_positions=max_positions)
        spelling = CharEncoder(encoder, build.build_pooling(side.pooling, side), out_proj=outlet)
        input_size += 0 if added else side.hidden_size
    embedding = text_embedder(config, vocab_size=vocab_size, segments=False).embedding
    dropout = config.embedding_dropout or 0.0
    front = WordEmbedder(embedding, spelling, dropout=dropout, word_dropout=config.word_dropout, added=added)
    encoder = TextEncoder(front, encoder_stack(config, max_positions=max_positions, input_size=input_size))
    head = (
        CRF(config.hidden_size, tags, allowed_transitions=allowed)
        if config.head == "crf"
        else LinearTagHead(config.hidden_size, tags)
    )
    return TaggerRun(encoder, head, dropout=config.dropout)
