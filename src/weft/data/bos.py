"""The tokens that precede a separate text: a beginning that is frequent in the training data.

A model of running text is trained on windows or streams and has seen <s> at most once, at the very beginning. It has learned
how text continues after a blank line, after a line that ends a sentence, after any line, and after a sentence. The first of
these that occurs in the training text precedes every text that is scored, explained or generated, as in a window that starts
there. (A newline alone is worse than a newline with the end of a sentence: most models then give a capital letter a probability
of about one half.) Lines that are read as separate sequences follow <s>, as in training.
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
CHUNK_TOKENS = 1 << 22  # searched at once
FILE = "opening.json"


def _occurrences(corpus: Corpus, pattern: np.ndarray) -> int:
    """How often these tokens occur in a text followed by another token."""
    count, size = 0, len(pattern)
    for low in range(0, max(0, len(corpus.tokens) - size), CHUNK_TOKENS):
        chunk = np.asarray(corpus.tokens[low : low + CHUNK_TOKENS + size])
        matches = np.ones(max(0, len(chunk) - size), bool)
        for offset, token in enumerate(pattern.tolist()):
            matches &= chunk[offset : offset + len(matches)] == token
        count += int(matches.sum())
    return count


def find_bos(corpus: Corpus, tokenizer: Tokenizer) -> str | None:
    """The text to precede separate texts, for a model of this running text; None: <s>, because nothing is better."""
    line_ends = _occurrences(corpus, tokenizer.encode("\n"))
    for text in BOS_CANDIDATES:
        tokens = tokenizer.encode(text)
        known = len(tokens) > 0 and tokenizer.unk_id not in tokens and tokenizer.decode(tokens.tolist()).strip() == text.strip()
        minimum = max(
            MIN_OCCURRENCES,
            len(corpus.tokens) / TOKENS_PER_OCCURRENCE,
            line_ends / LINE_ENDS_PER_OCCURRENCE if "\n" in text else 0,
        )
        if known and _occurrences(corpus, tokens) >= minimum:
            return text
    return None


def write_bos(directory: Path, text: str, tokenizer: Tokenizer) -> None:
    """Write the text to precede separate texts to the directory of the tokenizer."""
    files.write_json(directory / FILE, {"text": text, "tokens": tokenizer.encode(text).tolist()})


def read_bos(directory: Path, tokenizer: Tokenizer) -> list[int]:
    """The tokens that precede a separate text, at least one: those chosen in training, or else <s>."""
    path = directory / FILE
    if not path.exists():
        return [tokenizer.bos_id]
    about = files.read_json(path)
    text = about.get("text") if isinstance(about, dict) else None
    # both are stored, so that damage to one of them is detected
    if text not in BOS_CANDIDATES or about.get("tokens") != tokenizer.encode(text).tolist():
        raise ModelError(path, "corrupted: tokens and text do not match", "restore it or train the run again")
    return list(about["tokens"])


def with_bos(corpus: Corpus, directory: Path, tokenizer: Tokenizer) -> Corpus:
    """A corpus for evaluation: the tokens that precede a text of the run also precede running text."""
    return corpus if corpus.starts is not None else replace(corpus, bos_ids=tuple(read_bos(directory, tokenizer)))
