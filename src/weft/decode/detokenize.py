"""Tokens to text while they arrive: nothing is given out that a later token could still change or take back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

REPLACEMENT_CHAR = "\ufffd"  # what a decoder writes for bytes that are not UTF-8, or not yet


class TokenDecoder(Protocol):
    """What of a tokenizer is needed here."""

    @property
    def unk_id(self) -> int: ...

    @property
    def bos_id(self) -> int: ...

    @property
    def eos_id(self) -> int: ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def added_text(tokenizer: TokenDecoder, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """The text that `tokens` add to a prompt."""
    return tokenizer.decode([*prompt, *tokens])[len(tokenizer.decode(prompt)) :]


class StreamingDetokenizer:
    """The text that tokens add to a prompt, piece by piece.

    Decoded is always a few tokens, from a place where the text was complete: each piece costs the same, and a decoder
    that treats the first token of a text in its own way (no space before it) sees another token first.
    """

    def __init__(self, tokenizer: TokenDecoder, prompt: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.tokens = list(prompt)  # from the last complete place but one
        self.read = len(self.tokens)  # of these, how many have been given out

    def push(self, token: int) -> str:
        """The text that became certain with this token."""
        self.tokens.append(token)
        new = self._new()
        # a character may be incomplete: wait, what comes next decides
        return "" if not new or new.endswith(REPLACEMENT_CHAR) else self._give(new)

    def finish(self) -> str:
        """The rest: bytes that never became a character."""
        return self._give(self._new())

    def _new(self) -> str:
        return added_text(self.tokenizer, self.tokens[: self.read], self.tokens[self.read :])

    def _give(self, new: str) -> str:
        del self.tokens[: self.read]
        self.read = len(self.tokens)
        return new


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


class StopStringFilter:
    """Text up to the first of several stop strings, piece by piece; which is the first does not depend on the pieces.

    The first is the one that is complete first; of two that end together, the longer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The text that is certain to stand before any stop string."""
        if self.found:
            return ""
        text = self.held + piece
        places = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if places:
            self.found = True
            return text[: min(places)[1]]
        token_mask = max((_overlap(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - token_mask :]
        return text[: len(text) - token_mask]

    def finish(self) -> str:
        """What was held back, when no stop string came."""
        return "" if self.found else self.held


class StreamingText:
    """Spelling and stopping together: what one continuation says."""

    def __init__(self, tokenizer: TokenDecoder, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self.detokenizer, self.stop_filter = StreamingDetokenizer(tokenizer, prompt), StopStringFilter(stops)

    @property
    def has_stopped(self) -> bool:
        return self.stop_filter.found

    def push(self, token: int) -> str:
        return self.stop_filter.push(self.detokenizer.push(token))

    def finish(self) -> str:
        return self.stop_filter.push(self.detokenizer.finish()) + self.stop_filter.finish()


def decode_until_stop(tokenizer: TokenDecoder, prompt: Sequence[int], tokens: Sequence[int], stops: Sequence[str]) -> str:
    """The text that `tokens` add to a prompt, cut before the first stop string: what a stream of them says."""
    text = StreamingText(tokenizer, prompt, stops)
    pieces = [text.push(token) for token in tokens]
    return "".join([*pieces, text.finish()])
