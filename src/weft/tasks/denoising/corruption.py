"""Adds the noise of a run file to texts: which tokens start words and sentences, and batches of corrupted texts.

Shapes: V tokens of the vocabulary, T tokens of a batch, B texts.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from weft.data.noise import Corrupted, Noise, RandomNumbers, Texts, Units, corrupt
from weft.errors import ConfigError
from weft.text.tokenizers import Tokenizer
from weft.text.whole_words import word_starts

if TYPE_CHECKING:
    from weft.tasks.denoising.data import DenoisingDataConfig

SENTENCE_ENDS = tuple(".!?…。！？।")  # noqa: RUF001
SENTENCE_STARTS = "\"'([«“‘¿¡"  # noqa: RUF001
MARKED_SPACES = str.maketrans("Ġ▁", "  ")  # spaces in the tokens of other tokenizers


def _token_texts(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.token_text(token_id).translate(MARKED_SPACES) for token_id in range(tokenizer.vocab_size)]


class Corrupter:
    """Corrupts texts as a run file says."""

    def __init__(self, config: DenoisingDataConfig, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.by_word = tokenizer, config.span_unit == "word"
        self.noise = Noise(
            config.noise,
            tokenizer.vocab_size,
            config.max_length - 1 - tokenizer.start_tokens.num_positions("text"),  # </s>
            config.noise_density or 0.0,
            config.mean_span_length or 1.0,
            config.num_sentinels or 0,
            config.deletion_prob,
            config.permute_sentences,
            config.rotation_prob,
        )
        if self.by_word and self._word_starts is None:
            raise ConfigError(
                "data.span_unit",
                f"'word' is not possible with tokenizer type {tokenizer.type!r}, which does not mark word starts",
                "use tokenizer.type = 'bpe', 'unigram', 'wordpiece', 'word' or 'char', or span_unit = 'token'",
            )

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens of a text, without special tokens."""
        return self.noise.max_tokens

    @cached_property
    def _is_space(self) -> np.ndarray:
        """bool (V,): whether a token is whitespace."""
        return np.array([text.isspace() for text in _token_texts(self.tokenizer)])

    @cached_property
    def _word_starts(self) -> np.ndarray | None:
        """bool (V,): whether a token starts a word, for characters: is a space; None if that is not known."""
        return self._is_space if self.tokenizer.type in ("char", "byte") else word_starts(self.tokenizer)

    @cached_property
    def _sentence_ends(self) -> np.ndarray:
        """bool (V,): whether a token can end a sentence."""
        return np.array([text.rstrip().endswith(SENTENCE_ENDS) for text in _token_texts(self.tokenizer)])

    @cached_property
    def _sentence_starts(self) -> np.ndarray:
        """bool (V,): whether a token can start a sentence, if the one before it can end one: it starts with a space, or, if
        the tokenizer drops spaces, it starts a word."""
        texts = _token_texts(self.tokenizer)
        if self.tokenizer.lossless:
            return np.array([text[:1].isspace() for text in texts])
        return np.array([not text.startswith("##") and (text[:1].isalnum() or text[:1] in SENTENCE_STARTS) for text in texts])

    def _units(self, texts: Texts) -> Units:
        """The first tokens of words (or all tokens) and of sentences."""
        is_first = np.zeros(len(texts.tokens), bool)
        is_first[texts.starts[texts.lengths > 0]] = True
        units, sentences = np.ones(len(texts.tokens), bool), is_first
        if self.by_word and self._word_starts is not None:
            starts = self._word_starts[texts.tokens]
            if self.tokenizer.type in ("char", "byte"):  # of several spaces, the first one
                starts = starts & ~np.append(False, starts[:-1])[: len(starts)]
            units = is_first | starts
        if self.noise.permutes_sentences:
            ends = np.append(False, self._sentence_ends[texts.tokens][:-1])[: len(texts.tokens)]
            sentences = is_first | (ends & self._sentence_starts[texts.tokens])
        return Units(units, sentences)

    def corrupt(self, texts: Texts, examples: np.ndarray, *, seed: int, epoch: int) -> Corrupted:
        """The corrupted texts and their targets; `examples` (B,) are the numbers of the texts, which determine their noise."""
        return corrupt(texts, self._units(texts), self.noise, RandomNumbers(seed, epoch, examples))
