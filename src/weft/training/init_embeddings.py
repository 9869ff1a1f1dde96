"""Initialize the token embeddings of a network with word vectors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import ConfigError
from weft.text.tokenizers import Tokenizer
from weft.vectors.word_vectors import WordVectors

# by the name of the weight, the tokenizers that may have its tokens: the first that the vocabulary has
TABLES: Mapping[str, tuple[str, ...]] = {
    "embedding.weight": ("tokenizer",),
    "encoder.embedder.embedding.weight": ("source", "tokenizer"),
    "decoder.embedder.embedding.weight": ("target", "tokenizer"),
}


def _token_word(tokenizer: Tokenizer, token: int) -> str:
    """The word of a token; subword tokenizers mark the start of a word by a space."""
    return tokenizer.token_text(token).strip()


def load_embeddings(model: nn.Module, tokenizers: Mapping[str, Tokenizer], vectors: WordVectors) -> str:
    """Set the embedding of each token that is a word with a vector. The vectors are scaled to the mean length of the rows that
    they replace, because the layers above expect that. Returns a note with the number of tokens.

    Raises:
        ConfigError: The vectors have another size, no token has one, or the model has no token embeddings.
    """
    parameters = dict(model.named_parameters())
    tables = {name: parameters[name] for name in TABLES if name in parameters}
    if not tables:
        raise ConfigError("train.init_embeddings", "the model has no token embeddings", "remove it")
    notes, total = list[str](), 0
    for name, table in tables.items():
        if table.shape[1] != vectors.size:
            problem = f"{vectors.name} has {vectors.size} dimensions, but {name} has {table.shape[1]}"
            raise ConfigError("train.init_embeddings", problem, "set model.embedding_dim or model.hidden_size to its size")
        tokenizer = next(tokenizers[key] for key in (*TABLES[name], *tokenizers) if key in tokenizers)
        count = _fill(table, tokenizer, vectors)
        total += count
        notes.append(f"{name}: {count:,} of {tokenizer.vocab_size:,} tokens")
    if not total:
        problem = f"no token of the tokenizer has a vector in {vectors.name}"
        raise ConfigError("train.init_embeddings", problem, "use a word tokenizer, and the same language")
    return f"Initialized embeddings from {vectors.name} ({'; '.join(notes)})"


def _fill(table: Tensor, tokenizer: Tokenizer, vectors: WordVectors) -> int:
    """Copy vectors into the rows of their tokens. Returns how many there are."""
    found = {token: vectors.find(_token_word(tokenizer, token)) for token in range(tokenizer.vocab_size)}
    pairs = [(token, row) for token, row in found.items() if row is not None]
    if not pairs:
        return 0
    tokens, rows = (torch.tensor(part) for part in zip(*pairs, strict=True))
    values = torch.from_numpy(np.ascontiguousarray(vectors.rows.take(rows.numpy()))).to(table)
    with torch.no_grad():
        scale = table[tokens].norm(dim=1).mean() / values.norm(dim=1).mean().clamp(min=1e-12)
        table[tokens] = values * scale
    return len(pairs)
