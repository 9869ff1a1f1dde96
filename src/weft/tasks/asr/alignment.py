"""When the words of an output were said: the most probable CTC path, as word times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from weft.nn import ctc
from weft.text.tokenizers import Tokenizer


class WordTime(NamedTuple):
    """A word and when it was said, in seconds."""

    word: str
    start: float
    end: float


@dataclass(frozen=True)
class SpeechAlignment:
    """The words of an output with their times, and what the model saw and predicted at each moment."""

    words: list[WordTime]
    tokens: list[WordTime]
    seconds: float  # per position
    probs: np.ndarray  # (S, V): of CTC
    blank: int
    features: np.ndarray  # (T, F): normalized log-mel

    def to_json(self) -> dict[str, Any]:
        return {
            "words": [word._asdict() for word in self.words],
            "tokens": [{"token": token.word, "start": token.start, "end": token.end} for token in self.tokens],
        }


def align_words(
    log_probs: Tensor, token_ids: list[int], tokenizer: Tokenizer, *, blank: int, seconds: float, features: np.ndarray
) -> SpeechAlignment:
    """Word times from log_probs (S, V) of CTC; none if the output has no path."""
    spans = ctc.align(log_probs, token_ids, blank=blank)
    tokens = [
        WordTime(tokenizer.token_text(span.label), round(span.start * seconds, 3), round(span.end * seconds, 3))
        for span in spans
    ]
    words: list[WordTime] = []
    text = ""
    for number, (_, start, end) in enumerate(tokens, 1):
        new_text = tokenizer.decode(token_ids[:number])
        added, starts_word = new_text[len(text) :], not text or text[-1:].isspace()
        for index, part in enumerate(added.split(" ")):
            if not part:
                continue
            if words and not starts_word and index == 0:
                words[-1] = WordTime(words[-1].word + part, words[-1].start, end)
            else:
                words.append(WordTime(part, start, end))
        text = new_text
    return SpeechAlignment(words, tokens, seconds, log_probs.exp().numpy(), blank, features)
