"""Safe loading of tokenizer files that weft did not write.

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

MAX_EXPANSION = 64  # of the length of a text; normalization needs less
MAX_RULE_CHARS = 1 << 10  # inserted by a rule
# by type of rule: the key of the text that it inserts
INSERTED_TEXT = {"Replace": "content", "Prepend": "prepend", "Precompiled": "precompiled_charsmap"}
MAX_CHARSMAP_CHARS = 4 << 20  # of a SentencePiece normalization table; XLM-R has 0.3 million


class _SilencedStderr:
    """Context manager that silences standard error, where the library prints panics; the exception has the message, too.

    Several threads can be inside at once; the last one restores standard error.
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
        """Redirect standard error to the null device and return a copy of its descriptor; -1 if that is not possible."""
        try:
            saved_fd, null_fd = os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return -1
        os.dup2(null_fd, 2)
        os.close(null_fd)
        return saved_fd


_silenced = _SilencedStderr()


@contextmanager
def wrap_errors(where: str, *, external: bool = True) -> Iterator[None]:
    """Convert every error of the library to a ModelError at `where`. `external`: weft did not write the tokenizer file, so the
    library may panic."""
    try:
        with _silenced if external else nullcontext():
            yield
    except TypeError:
        raise  # the caller passed something other than a string
    except BaseException as error:
        # the library has no exception type of its own, and a panic is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(where, str(error)[:200]) from None


def parse_tokenizer(data: bytes, where: str) -> tokenizers.Tokenizer:
    """Load a tokenizer.json; an error if it is corrupted."""
    with wrap_errors(f"{where}: not a tokenizer.json, or corrupted"):
        return tokenizers.Tokenizer.from_buffer(data)


def _expansion(rule: Any, where: str) -> int:
    """Maximum factor by which a rule, or a sequence of rules, lengthens a text."""
    if not isinstance(rule, Mapping):
        return 1
    factor, rule_type = 1, str(rule.get("type"))
    if rule_type == "Sequence":
        for child in next((rule[name] for name in ("normalizers", "pretokenizers", "decoders") if name in rule), ()):
            factor *= _expansion(child, where)
        return factor
    inserted = rule.get(INSERTED_TEXT.get(rule_type, ""))
    limit = MAX_CHARSMAP_CHARS if rule_type == "Precompiled" else MAX_RULE_CHARS
    size = len(inserted) if isinstance(inserted, str) else 0
    if size > limit:
        raise ModelError(where, f"{rule_type} rule with {size:,} characters; the limit is {limit:,}")
    if rule_type != "Replace":
        return factor
    pattern = rule.get("pattern")
    replaced = pattern.get("String") if isinstance(pattern, Mapping) else None
    # a regular expression may match the empty string before every character
    return max(1, -(-size // len(replaced))) if replaced else size + 1


def check_expansion(parts: Mapping[str, Any], where: str) -> None:
    """Refuse a tokenizer.json whose rules can make a text much longer."""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        if (factor := _expansion(parts.get(name), where)) > MAX_EXPANSION:
            raise ModelError(where, f"{name} can make a text {factor:,} times as long; the limit is {MAX_EXPANSION}")
