"""BOS tokens of language models of running text.

A model that is trained on windows or streams of running text has seen <s> at most once. But it has learned how text continues
after a blank line, a line that ends a sentence, any line, or a sentence. The first of these that is frequent in the training
text precedes every text that is scored, explained or generated. (A newline after the end of a sentence is better than a newline
alone, after which most models give a capital letter a probability of about one half.) Models of separate lines use <s>, as in
training.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from weft import files
from weft.data.corpus import Corpus
from weft.errors import ModelError
from weft.text.tokenizers import Tokenizer

BOS_CANDIDATES = ("\n\n", ".\n", "\n", ". ", ".")  # the first one that is frequent enough is used
TOKENS_PER_OCCURRENCE = 10_000  # a candidate must occur at least once per this many training tokens
MIN_OCCURRENCES = 2  # <s> occurs once
LINE_ENDS_PER_OCCURRENCE = 10  # a candidate with a newline must be at least one in this many line ends
CHUNK_TOKENS = 1 << 22  # tokens searched at once
MAX_CHUNKS = 16  # of a longer text, this many chunks at equal distances are searched
FILE = "bos.json"


def _chunk_starts(total: int) -> list[int]:
    """The start of each chunk that is searched: every one, or MAX_CHUNKS at equal distances."""
    num_chunks = -(-total // CHUNK_TOKENS)
    numbers = range(num_chunks) if num_chunks <= MAX_CHUNKS else [i * num_chunks // MAX_CHUNKS for i in range(MAX_CHUNKS)]
    return [number * CHUNK_TOKENS for number in numbers]


def _num_searched(corpus: Corpus) -> int:
    """The number of tokens that are searched."""
    return min(len(corpus.tokens), MAX_CHUNKS * CHUNK_TOKENS)


def _count_occurrences(corpus: Corpus, pattern: np.ndarray) -> int:
    """How often the tokens `pattern` (P,) occur with another token after them, in the chunks that are searched."""
    count, size = 0, len(pattern)
    for start in _chunk_starts(max(0, len(corpus.tokens) - size)):
        chunk = np.asarray(corpus.tokens[start : start + CHUNK_TOKENS + size])
        matches = np.ones(max(0, len(chunk) - size), bool)
        for offset, token in enumerate(pattern.tolist()):
            matches &= chunk[offset : offset + len(matches)] == token
        count += int(matches.sum())
    return count


def find_bos(corpus: Corpus, tokenizer: Tokenizer) -> str | None:
    """The text that precedes a separate text, for a model of this running text; None: <s>, because no candidate is frequent."""
    line_ends = _count_occurrences(corpus, tokenizer.encode("\n"))
    for text in BOS_CANDIDATES:
        token_ids = tokenizer.encode(text)
        is_lossless = tokenizer.decode(token_ids.tolist()).strip() == text.strip()
        is_known = len(token_ids) > 0 and tokenizer.unk_id not in token_ids and is_lossless
        minimum = max(
            MIN_OCCURRENCES,
            _num_searched(corpus) / TOKENS_PER_OCCURRENCE,
            line_ends / LINE_ENDS_PER_OCCURRENCE if "\n" in text else 0,
        )
        if is_known and _count_occurrences(corpus, token_ids) >= minimum:
            return text
    return None


def write_bos(directory: Path, text: str, tokenizer: Tokenizer) -> None:
    """Write the BOS text and its tokens to the directory of the tokenizer."""
    files.write_json(directory / FILE, {"text": text, "token_ids": tokenizer.encode(text).tolist()})


def read_bos(directory: Path, tokenizer: Tokenizer) -> list[int]:
    """The tokens that precede a separate text, at least one: those that training chose, or else <s>."""
    path = directory / FILE
    if not path.exists():
        return [tokenizer.bos_id]
    content = files.read_json(path)
    text = content.get("text") if isinstance(content, dict) else None
    # text and tokens are both stored, so that corruption of either is detected
    if text not in BOS_CANDIDATES or content.get("token_ids") != tokenizer.encode(text).tolist():
        raise ModelError(path, "corrupted: tokens and text do not match", "restore it or train the run again")
    return list(content["token_ids"])


def with_bos(corpus: Corpus, directory: Path, tokenizer: Tokenizer) -> Corpus:
    """A corpus for evaluation: running text follows the BOS tokens of the run; separate lines follow <s>."""
    return corpus if corpus.starts is not None else replace(corpus, bos_ids=tuple(read_bos(directory, tokenizer)))
