"""Sequence taggers: an encoder of tokens and, optionally, of the characters of each word; one tag per word.

A word is one or more tokens; its first token represents it.
Shapes: B sentences, S tokens, W words, C characters, D hidden size, K tags.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import EncoderInput, TextEncoder, WordDropout, encoder_stack, text_embedder, text_encoder
from weft.models.encoder_config import TaggerConfig
from weft.nn.crf import CRF, LinearTagHead
from weft.nn.dropout import IntegerDropout

SHORT_FRACTION = 0.9  # fraction of the words of a batch that are encoded without the longest words, to save padding
HASH_MULTIPLIER = 6364136223846793005  # Knuth's, for linear congruential generators


class TaggerInput(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, the tokens of all words, </s>; padded with 0
    token_mask: Tensor  # bool (B, S)
    first: Tensor  # int64 (B, W): index of the first token of each word
    word_mask: Tensor  # bool (B, W), False on padding
    char_ids: Tensor | None  # int64 (B, W, C): characters and </s>, padded with 0; None without a character encoder
    char_mask: Tensor | None  # bool (B, W, C), at least one True per word


def unique_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Deduplicate rows of integers (N, C): the index of one row for each distinct value (U,), and the inverse (N,), as
    `torch.unique` returns it."""
    # a polynomial hash modulo 2**64: a collision within one batch is practically impossible
    powers = torch.tensor([pow(HASH_MULTIPLIER, column + 1, 1 << 63) for column in range(rows.size(1))], device=rows.device)
    _, inverse = torch.unique((rows * powers).sum(1), return_inverse=True)
    index = torch.empty(int(inverse.max()) + 1, dtype=torch.long, device=rows.device)
    index[inverse] = torch.arange(len(rows), device=rows.device)
    return index, inverse


class CharEncoder(nn.Module):
    """Character encoder: one vector per word, from its characters (Lample et al. 2016, Ma and Hovy 2016)."""

    def __init__(self, encoder: TextEncoder, pooling: nn.Module, *, out_proj: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.pooling, self.out_proj = encoder, pooling, out_proj or nn.Identity()

    def forward(self, char_ids: Tensor, token_mask: Tensor) -> Tensor:
        """Characters (B, W, C) to word vectors (B, W, D). Each distinct word is encoded once."""
        shape, char_ids, token_mask = char_ids.shape[:2], char_ids.flatten(0, 1), token_mask.flatten(0, 1)
        rows, inverse = unique_rows(char_ids.masked_fill(~token_mask, 0))
        lengths = token_mask[rows].sum(1)
        order, num_short = lengths.argsort(), max(1, int(SHORT_FRACTION * len(rows)))
        parts = [
            self._encode_chars(char_ids, token_mask, rows[part], int(lengths[part[-1]]))
            for part in order.tensor_split([num_short])
            if len(part)
        ]
        return torch.cat(parts)[order.argsort()][inverse].view(*shape, -1)

    def _encode_chars(self, char_ids: Tensor, token_mask: Tensor, rows: Tensor, max_length: int) -> Tensor:
        vectors: Tensor = self.out_proj(
            self.pooling(*self.encoder(EncoderInput(char_ids[rows, :max_length], token_mask[rows, :max_length])))
        )
        return vectors


class WordEmbedder(nn.Module):
    """Token embeddings, with the output of the character encoder at the first token of each word.

    Both are concatenated, or with `add_chars`, added. Weights have the same names as in a TextEmbedder.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        char_encoder: CharEncoder | None,
        *,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
        add_chars: bool = False,
    ) -> None:
        super().__init__()
        self.embedding, self.char_encoder, self.add_chars = embedding, char_encoder, add_chars
        self.dropout, self.word_dropout = IntegerDropout(dropout), WordDropout(word_dropout)

    def forward(self, words: TaggerInput) -> tuple[Tensor, Tensor]:
        """Embeddings (B, S, D) and token mask (B, S)."""
        x, token_mask = self.dropout(self.embedding(self.word_dropout(words.tokens))), words.token_mask
        if self.char_encoder is None or words.char_ids is None or words.char_mask is None:
            return x, token_mask
        word_vectors = self.dropout(self.char_encoder(words.char_ids, words.char_mask))  # (B, W, D)
        word_vectors = word_vectors.masked_fill(~words.word_mask[..., None], 0.0)
        token_vectors = word_vectors.new_zeros(*x.shape[:2], word_vectors.size(-1))
        # padding words point to token 0, <s>, and add zeros there
        token_vectors = token_vectors.scatter_add(1, words.first[..., None].expand_as(word_vectors), word_vectors)
        return (x + token_vectors if self.add_chars else torch.cat([x, token_vectors.to(x.dtype)], dim=-1)), token_mask


class Tagger(nn.Module):
    """P(tags | words)."""

    def __init__(self, encoder: TextEncoder, head: CRF | LinearTagHead, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.head, self.dropout = encoder, head, IntegerDropout(dropout)

    @property
    def max_positions(self) -> int | None:
        return self.encoder.max_positions

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack")

    def forward(self, words: TaggerInput) -> Tensor:
        """The hidden state of each word, (B, W, D)."""
        y, _ = self.encoder(words)
        word_states: Tensor = self.dropout(y.gather(1, words.first[..., None].expand(-1, -1, y.size(-1))))
        return word_states

    def loss(self, words: TaggerInput, tags: Tensor) -> Tensor:
        """Negative log-likelihood of each sentence's tags in nats, (B,)."""
        loss: Tensor = self.head.loss(self(words), tags, words.word_mask)
        return loss

    def tag(self, words: TaggerInput) -> Tensor:
        """The best tags, (B, W)."""
        best: Tensor = self.head.decode(self(words), words.word_mask)
        return best


def tagger(
    config: TaggerConfig,
    *,
    vocab_size: int,
    char_vocab_size: int,
    num_tags: int,
    max_positions: int,
    allowed_transitions: Tensor | None,
) -> Tagger:
    """The model of a resolved configuration, initialized with torch's default random generator.

    `allowed_transitions` (K + 1, K + 1) is the transition mask of the CRF.
    """
    char_encoder, input_size = None, config.input_dim()
    add_chars = config.traits.attends  # the input of attention has the hidden size: concatenation is not possible
    if (char_config := config.resolved_char_encoder()) is not None:
        out_proj = nn.Linear(char_config.hidden_size, input_size) if add_chars else None
        encoder = text_encoder(char_config, vocab_size=char_vocab_size, max_positions=max_positions)
        char_encoder = CharEncoder(encoder, build.build_pooling(char_config.pooling, char_config), out_proj=out_proj)
        input_size += 0 if add_chars else char_config.hidden_size
    embedding = text_embedder(config, vocab_size=vocab_size, segments=False).embedding
    dropout = config.embedding_dropout or 0.0
    embedder = WordEmbedder(embedding, char_encoder, dropout=dropout, word_dropout=config.word_dropout, add_chars=add_chars)
    encoder = TextEncoder(embedder, encoder_stack(config, max_positions=max_positions, input_size=input_size))
    head = (
        CRF(config.hidden_size, num_tags, allowed_transitions=allowed_transitions)
        if config.head == "crf"
        else LinearTagHead(config.hidden_size, num_tags)
    )
    return Tagger(encoder, head, dropout=config.dropout)
