"""Word starts for whole-word masking, for tokenizers whose tokens determine them."""

from __future__ import annotations

import json

import numpy as np

from weft.text.pipelines import byte_chars
from weft.text.tokenizers import Tokenizer


def word_starts(tokenizer: Tokenizer) -> np.ndarray | None:
    """bool (V,): whether each token starts a word instead of continuing one; None if that depends on the context.

    A byte-level token continues a word if it starts with a letter, a digit or part of a character, without a preceding space.
    """
    if tokenizer.type in ("char", "byte"):
        return None
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    match word_boundaries(tokenizer):
        case "prefixed":
            return np.array([not token.startswith("##") for token in tokens])
        case "bytes":
            values = {char: value for value, char in enumerate(byte_chars())}
            return np.array([not _continues_word(token, values) for token in tokens])
        case "words":
            return np.ones(len(tokens), dtype=bool)
    return None


def word_boundaries(tokenizer: Tokenizer) -> str:
    """How tokens mark word starts: 'prefixed' (## marks a continuation), 'bytes' (a space marks a start), 'words' (each token
    is a word), or 'unknown'."""
    parts = json.loads(tokenizer.data)
    model, split = parts["model"], json.dumps(parts.get("pre_tokenizer"))
    if model["type"] == "WordPiece" and model.get("continuing_subword_prefix") == "##":
        return "prefixed"
    if model["type"] in ("BPE", "Unigram") and '"ByteLevel"' in split:
        return "bytes"
    return "words" if tokenizer.type in ("word", "whitespace") else "unknown"


def _continues_word(token: str, values: dict[str, int]) -> bool:
    if any(char not in values for char in token):  # special tokens
        return False
    text = bytes(values[char] for char in token).decode("utf-8", "replace")
    return text[:1].isalnum() or text[:1] == "\ufffd"
