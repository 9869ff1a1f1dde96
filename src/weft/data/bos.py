"""What a text that stands by itself comes after: a start that training has shown.

A model of running text reads windows or streams, and has met <s> once, at the very beginning, or never. It knows what stands
after a blank line, after a line that ends a sentence, after any line, after a sentence: the first of these that the training
text has is what a text that is scored, explained or generated comes after, as in a window that happens to start there. (The
newline alone says less than it with what stands before it: most models then take a capital letter for as likely as not.) Lines
that are read one by one come after <s>: training put it there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from weft import files
from weft.data.corpus import Corpus
from weft.errors import ModelError
from weft.text.tokenizers import Tokenizer

BOS_CANDIDATES = ("\n\n", ".\n", "\n", ". ", ".")  # the first that training has shown often enough
MIN_COUNT = 10_000  # tokens of training in which an opening must stand at least once
MIN_LINES = 2  # times in all; <s> stands there once
MIN_FRACTION = 10  # one of so many line ends must be such a one, where it is not any
CHUNK = 1 << 22  # tokens looked at at once
FILE = "opening.json"


def _shown(corpus: Corpus, wanted: np.ndarray) -> int:
    """How often these tokens stand in a text with another token after them."""
    found, size = 0, len(wanted)
    for low in range(0, max(0, len(corpus.tokens) - size), CHUNK):
        part = np.asarray(corpus.tokens[low : low + CHUNK + size])
        here = np.ones(max(0, len(part) - size), bool)
        for at, token in enumerate(wanted.tolist()):
            here &= part[at : at + len(here)] == token
        found += int(here.sum())
    return found


def find_bos(corpus: Corpus, tokenizer: Tokenizer) -> str | None:
    """The opening of texts that stand by themselves, for a model of this running text; None: <s>, for there is none better."""
    lines = _shown(corpus, tokenizer.encode("\n"))
    for text in BOS_CANDIDATES:
        tokens = tokenizer.encode(text)
        known = len(tokens) > 0 and tokenizer.unk_id not in tokens and tokenizer.decode(tokens.tolist()).strip() == text.strip()
        minimum = max(MIN_LINES, len(corpus.tokens) / MIN_COUNT, lines / MIN_FRACTION if "\n" in text else 0)
        if known and _shown(corpus, tokens) >= minimum:
            return text
    return None


def write_bos(directory: Path, text: str, tokenizer: Tokenizer) -> None:
    """Keep it beside the tokenizer."""
    files.write_json(directory / FILE, {"text": text, "tokens": tokenizer.encode(text).tolist()})


def read_bos(directory: Path, tokenizer: Tokenizer) -> list[int]:
    """The tokens that a text comes after, at least one: those that training chose, or else <s>."""
    path = directory / FILE
    if not path.exists():
        return [tokenizer.bos_id]
    about = files.read_json(path)
    text = about.get("text") if isinstance(about, dict) else None
    # both must agree, so that damage to one of them is seen
    if text not in BOS_CANDIDATES or about.get("tokens") != tokenizer.encode(text).tolist():
        raise ModelError(path, "is damaged: its tokens are not those of its text", "put it back, or train the run again")
    return list(about["tokens"])


def with_bos(corpus: Corpus, directory: Path, tokenizer: Tokenizer) -> Corpus:
    """Running text that is measured: its first token, too, comes after what a text of the run comes after."""
    return corpus if corpus.starts is not None else replace(corpus, bos_ids=tuple(read_bos(directory, tokenizer)))
