"""Which tokens start a word, where a token can tell."""

from __future__ import annotations

import json

import numpy as np

from weft.text.pipelines import byte_letters
from weft.text.tokenizers import Tokenizer


def word_starts(tokenizer: Tokenizer) -> np.ndarray | None:
    """bool (words,): False for a piece that goes on with the word before it; None where that depends on what stands there.

    A piece of bytes goes on if it starts with a letter, a digit or half a character, without the space that starts a word.
    """
    if tokenizer.type in ("char", "byte"):
        return None
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.vocab_size)]
    match pieces(tokenizer):
        case "prefixed":
            return np.array([not token.startswith("##") for token in tokens])
        case "bytes":
            values = {letter: value for value, letter in enumerate(byte_letters())}
            return np.array([not _goes_on(token, values) for token in tokens])
        case "words":
            return np.ones(len(tokens), dtype=bool)
    return None


def pieces(tokenizer: Tokenizer) -> str:
    """How tokens show where words start: 'prefixed' (##), 'bytes' (a space is a part of them), 'words', or 'unknown'."""
    parts = json.loads(tokenizer.data)
    model, split = parts["model"], json.dumps(parts.get("pre_tokenizer"))
    if model["type"] == "WordPiece" and model.get("continuing_subword_prefix") == "##":
        return "prefixed"
    if model["type"] in ("BPE", "Unigram") and '"ByteLevel"' in split:
        return "bytes"
    return "words" if tokenizer.type in ("word", "whitespace") else "unknown"


def _goes_on(token: str, values: dict[str, int]) -> bool:
    if any(letter not in values for letter in token):  # a special token
        return False
    text = bytes(values[letter] for letter in token).decode("utf-8", "replace")
    return text[:1].isalnum() or text[:1] == "\ufffd"
