"""A tokenizer with noise tokens after its own: one mask, or numbered sentinels.

Noise tokens are not part of the tokenizer file, so a model that is trained on without them needs no other tokenizer. Only texts
of `with_noise_tokens` have them: in training data, `<mask>` and `<extra_id_0>` are ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain, groupby

import numpy as np

from weft.text.tokenizers import Flat, Tokenizer
from weft.text.whole_words import word_boundaries

MASKS = ("<mask>", "[MASK]")


class NoiseTokenizer(Tokenizer):
    """Text with noise tokens to token IDs and back. `num_sentinels` is 0 for a single mask."""

    def __init__(self, tokenizer: Tokenizer, num_sentinels: int = 0) -> None:
        super().__init__(tokenizer.data, "tokenizer")
        self.first_noise_id, self.num_sentinels = self.vocab_size, num_sentinels
        self.vocab_size += max(1, num_sentinels)
        names = "|".join(map(re.escape, MASKS)) + (r"|<extra_id_\d{1,9}>" if num_sentinels else "")
        # if a space belongs to the token after it, the space before a mask belongs to the mask
        space = " ?" if word_boundaries(tokenizer) == "bytes" and tokenizer.type != "byte" else ""
        self.pattern = re.compile(f"{space}(?:{names})")

    def noise_text(self, token_id: int) -> str:
        """The name of a noise token."""
        return f"<extra_id_{token_id - self.first_noise_id}>" if self.num_sentinels else MASKS[0]

    def _noise_ids(self, names: Sequence[str]) -> list[int]:
        """The IDs of the noise tokens in one text; masks are numbered from 0 if there are sentinels. A sentinel that does not
        exist is an unknown token."""
        if not self.num_sentinels:
            return [self.first_noise_id] * len(names)
        numbers = [
            int(name.strip()[10:-1]) if name.strip() not in MASKS else before
            for before, name in zip(_masks_before(names), names, strict=True)
        ]
        return [self.first_noise_id + number if number < self.num_sentinels else self.unk_id for number in numbers]

    def encode_concatenated(self, texts: Sequence[str]) -> Flat:
        parts = [self.pattern.split(text) for text in texts]
        ids, lengths = super().encode_concatenated(list(chain.from_iterable(parts)))
        if all(len(part) == 1 for part in parts):
            return ids, lengths
        pieces, counts, encoded = iter(np.split(ids, np.cumsum(lengths)[:-1])), list[int](), list[np.ndarray]()
        for text in texts:
            tokens = [next(pieces)]
            for noise_id in self._noise_ids(self.pattern.findall(text)):
                tokens += [np.array([noise_id], np.int64), next(pieces)]
            encoded += tokens
            counts.append(sum(map(len, tokens)))
        return np.concatenate(encoded), np.array(counts, np.int64)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        inner, offsets, start = super().offsets, list[tuple[int, int]](), 0
        for match in self.pattern.finditer(text):
            offsets += [(start + low, start + high) for low, high in inner(text[start : match.start()])]
            offsets.append(match.span())
            start = match.end()
        return offsets + [(start + low, start + high) for low, high in inner(text[start:])]

    def unknown_parts(self, texts: list[str]) -> list[str]:
        return super().unknown_parts(list(chain.from_iterable(self.pattern.split(text) for text in texts)))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the token IDs, with the names of noise tokens. `encode` reads it as the same tokens."""
        runs = [(is_noise, list(tokens)) for is_noise, tokens in groupby(map(int, ids), lambda i: i >= self.first_noise_id)]
        if not any(is_noise for is_noise, _ in runs):
            return super().decode(chain.from_iterable(tokens for _, tokens in runs))
        text = ""
        for is_noise, tokens in runs:
            for part in map(self.noise_text, tokens) if is_noise else [super().decode(tokens)]:
                text += f" {part}" if self._needs_space(text, part, is_noise) else part
        return text

    def _needs_space(self, text: str, part: str, is_noise: bool) -> bool:
        """Whether a space separates a text from a noise token after it, or from the words after a noise token. Characters and
        bytes have spaces of their own, and subwords begin with theirs."""
        if not text or not part or text[-1].isspace() or part[0].isspace() or self.type in ("char", "byte"):
            return False
        return is_noise or not self.lossless

    def id_to_token(self, token_id: int) -> str:
        return self.noise_text(token_id) if token_id >= self.first_noise_id else super().id_to_token(token_id)

    def token_text(self, token_id: int) -> str:
        return self.noise_text(token_id) if token_id >= self.first_noise_id else super().token_text(token_id)


def _masks_before(names: Sequence[str]) -> list[int]:
    """The number of masks before each noise token."""
    counts, count = [], 0
    for name in names:
        counts.append(count)
        count += name.strip() in MASKS
    return counts
