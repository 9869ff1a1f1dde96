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

OPENINGS = ("\n\n", ".\n", "\n", ". ", ".")  # the first that training has shown often enough
OFTEN = 10_000  # tokens of training in which an opening must stand at least once
LEAST = 2  # times in all; <s> stands there once
SHARE = 10  # one of so many line ends must be such a one, where it is not any
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


def find_opening(corpus: Corpus, tokenizer: Tokenizer) -> str | None:
    """The opening of texts that stand by themselves, for a model of this running text; None: <s>, for there is none better."""
    lines = _shown(corpus, tokenizer.encode("\n"))
    for text in OPENINGS:
        tokens = tokenizer.encode(text)
        known = len(tokens) > 0 and tokenizer.unk not in tokens and tokenizer.decode(tokens.tolist()).strip() == text.strip()
        least = max(LEAST, len(corpus.tokens) / OFTEN, lines / SHARE if "\n" in text else 0)
        if known and _shown(corpus, tokens) >= least:
            return text
    return None


def write_opening(folder: Path, text: str, tokenizer: Tokenizer) -> None:
    """Keep it beside the tokenizer."""
    files.write_json(folder / FILE, {"text": text, "tokens": tokenizer.encode(text).tolist()})


def read_opening(folder: Path, tokenizer: Tokenizer) -> list[int]:
    """The tokens that a text comes after, at least one: those that training chose, or else <s>."""
    path = folder / FILE
    if not path.exists():
        return [tokenizer.begin]
    about = files.read_json(path)
    text = about.get("text") if isinstance(about, dict) else None
    # both must agree, so that damage to one of them is seen
    if text not in OPENINGS or about.get("tokens") != tokenizer.encode(text).tolist():
        raise ModelError(f"{path}: is damaged: its tokens are not those of its text; put it back, or train the run again")
    return list(about["tokens"])


def opened(corpus: Corpus, folder: Path, tokenizer: Tokenizer) -> Corpus:
    """Running text that is measured: its first token, too, comes after what a text of the run comes after."""
    return corpus if corpus.starts is not None else replace(corpus, opening=tuple(read_opening(folder, tokenizer)))
