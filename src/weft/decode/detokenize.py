"""Streaming detokenization: emit only text that later tokens cannot change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

MAX_CACHED_LENGTH, MAX_CACHED_TEXTS = 4, 1 << 16  # tokens of a text, and texts, that a CachedDecoder remembers
REPLACEMENT_CHAR = "\ufffd"  # tokenizers decode invalid or incomplete UTF-8 to it


class TokenDecoder(Protocol):
    """The part of a tokenizer that decoding needs."""

    @property
    def unk_id(self) -> int: ...

    @property
    def bos_id(self) -> int: ...

    @property
    def eos_id(self) -> int: ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: Sequence[int]) -> str: ...


# texts of short token sequences, which all texts of a tokenizer share
_TEXTS = WeakKeyDictionary["TokenDecoder", dict[tuple[int, ...], str]]()


class CachedDecoder:
    """A tokenizer that remembers the texts of short token sequences: most texts that are generated have them in common."""

    def __init__(self, tokenizer: TokenDecoder) -> None:
        self.unk_id, self.bos_id, self.eos_id = tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id
        self.encode, self._tokenizer = tokenizer.encode, tokenizer
        self._texts = _TEXTS.setdefault(tokenizer, {})

    def decode(self, ids: Sequence[int]) -> str:
        if len(ids) > MAX_CACHED_LENGTH:
            return self._tokenizer.decode(ids)
        key = tuple(ids)
        text = self._texts.get(key)
        if text is None:
            text = self._tokenizer.decode(ids)
            if len(self._texts) < MAX_CACHED_TEXTS:
                self._texts[key] = text
        return text


def added_text(tokenizer: TokenDecoder, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """The text that `tokens` add to a prompt."""
    return tokenizer.decode([*prompt, *tokens])[len(tokenizer.decode(prompt)) :]


class StreamingDetokenizer:
    """The text that tokens add to a prompt, token by token.

    Only a few tokens are decoded at a time, starting after a complete character: each step costs the same, and tokenizers
    that treat the first token of a text specially (no space before it) see another token first.
    """

    def __init__(self, tokenizer: TokenDecoder, prompt: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.tokens = list(prompt)  # the last emitted tokens, and those not emitted yet
        self.num_emitted = len(self.tokens)

    def push(self, token: int) -> str:
        """Add a token and return the text that is now final."""
        self.tokens.append(token)
        text = self._pending_text()
        # the last character may be incomplete: wait for the next token
        return "" if not text or text.endswith(REPLACEMENT_CHAR) else self._emit(text)

    def finish(self) -> str:
        """Return the rest: bytes that never became a character."""
        return self._emit(self._pending_text())

    def _pending_text(self) -> str:
        return self.tokenizer.decode(self.tokens)[len(self.tokenizer.decode(self.tokens[: self.num_emitted])) :]

    def _emit(self, text: str) -> str:
        del self.tokens[: self.num_emitted]
        self.num_emitted = len(self.tokens)
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


class StopStringFilter:
    """Pass text on, chunk by chunk, up to the first stop string. The result does not depend on how the text is split.

    The first stop string is the one that is complete first; of two that end at the same position, the longer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.pending = ""  # may be the beginning of a stop string
        self.has_stopped = False

    def push(self, chunk: str) -> str:
        """Add text and return the text that certainly precedes any stop string."""
        if self.has_stopped:
            return ""
        text = self.pending + chunk
        matches = [(start + len(stop), start) for stop in self.stops if (start := text.find(stop)) >= 0]
        if matches:
            self.has_stopped = True
            return text[: min(matches)[1]]
        num_pending = max((_overlap(text, stop) for stop in self.stops), default=0)
        self.pending = text[len(text) - num_pending :]
        return text[: len(text) - num_pending]

    def finish(self) -> str:
        """Return the pending text if no stop string occurred."""
        return "" if self.has_stopped else self.pending


class StreamingText:
    """The text of one continuation: detokenized, up to the first stop string."""

    def __init__(self, tokenizer: TokenDecoder, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self.detokenizer, self.stop_filter = StreamingDetokenizer(tokenizer, prompt), StopStringFilter(stops)

    @property
    def has_stopped(self) -> bool:
        return self.stop_filter.has_stopped

    def push(self, token: int) -> str:
        chunk = self.detokenizer.push(token)
        return self.stop_filter.push(chunk) if self.stop_filter.stops else chunk

    def finish(self) -> str:
        return self.stop_filter.push(self.detokenizer.finish()) + self.stop_filter.finish()


def decode_until_stop(
    tokenizer: TokenDecoder, prompt: Sequence[int], tokens: Sequence[int], stops: Sequence[str]
) -> tuple[str, bool]:
    """The text that `tokens` add to a prompt, up to the first stop string, and whether one occurred. Equal to the concatenated
    stream."""
    if not stops:
        return added_text(tokenizer, prompt, tokens), False
    text = StreamingText(tokenizer, prompt, stops)
    chunks = [text.push(token) for token in tokens]
    return "".join([*chunks, text.finish()]), text.has_stopped
