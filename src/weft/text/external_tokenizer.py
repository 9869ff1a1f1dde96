"""Safe use of tokenizer files that weft did not write.

Such a file can make the `tokenizers` library panic, or contain rules that expand a short text until memory runs out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import tokenizers

from weft.errors import ModelError

MAX_EXPANSION = 64  # factor by which rules may lengthen a text; normalization needs less
MAX_RULE_CHARS = 1 << 10  # characters that a rule may insert
RULES = {"Replace": "content", "Prepend": "prepend", "Precompiled": "precompiled_charsmap"}  # rule to its inserted text
MAX_CHARSMAP_CHARS = 4 << 20  # of a SentencePiece table; XLM-R has 0.3 million


class _SilencedStderr:
    """Context manager that hides standard error, where the library prints its panics: the exception has the message.

    Several threads may be inside at once; the last one restores standard error.
    """

    def __init__(self) -> None:
        self._lock, self._depth, self._saved_fd = threading.Lock(), 0, -1

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._saved_fd = self._redirect()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._saved_fd >= 0:
                os.dup2(self._saved_fd, 2)
                os.close(self._saved_fd)

    def _redirect(self) -> int:
        """Redirect standard error to the null device. Return a copy of it, -1 if that is not possible."""
        try:
            saved_fd, null_fd = os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return -1
        os.dup2(null_fd, 2)
        os.close(null_fd)
        return saved_fd


_silenced = _SilencedStderr()


@contextmanager
def wrap_errors(where: str, *, foreign: bool = True) -> Iterator[None]:
    """Turn every error of the library into a ModelError at `where`. `foreign`: the tokenizer comes from a file that weft did
    not write, and may panic."""
    try:
        with _silenced if foreign else nullcontext():
            yield
    except TypeError:
        raise  # the input was not a string
    except BaseException as error:
        # the library has no exception type of its own, and a panic is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(where, str(error)[:200]) from None


def parse_tokenizer(data: bytes, where: str) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json; an error if it is corrupted."""
    with wrap_errors(f"{where}: not a tokenizer.json, or corrupted"):
        return tokenizers.Tokenizer.from_buffer(data)


def _expansion(rule: Any, where: str) -> int:
    """The factor by which a rule, or a sequence of rules, can lengthen a text."""
    if not isinstance(rule, Mapping):
        return 1
    factor, kind = 1, str(rule.get("type"))
    if kind == "Sequence":
        for child in next((rule[name] for name in ("normalizers", "pretokenizers", "decoders") if name in rule), ()):
            factor *= _expansion(child, where)
        return factor
    inserted, limit = rule.get(RULES.get(kind, "")), MAX_CHARSMAP_CHARS if kind == "Precompiled" else MAX_RULE_CHARS
    size = len(inserted) if isinstance(inserted, str) else 0
    if size > limit:
        raise ModelError(where, f"{kind} rule with {size:,} characters; the limit is {limit:,}")
    if kind != "Replace":
        return factor
    pattern = rule.get("pattern")
    replaced = pattern.get("String") if isinstance(pattern, Mapping) else None
    # a regular expression may match the empty string before each character
    return max(1, -(-size // len(replaced))) if replaced else size + 1


def check_expansion(parts: Mapping[str, Any], where: str) -> None:
    """Reject a tokenizer.json whose rules can make a text much longer."""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        if (factor := _expansion(parts.get(name), where)) > MAX_EXPANSION:
            raise ModelError(where, f"{name} can make a text {factor:,} times as long; the limit is {MAX_EXPANSION}")
