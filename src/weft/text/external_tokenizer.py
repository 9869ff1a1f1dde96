"""Tokenizers of files that anybody may have written: what their library may do with them.

A file can make the library panic, or hold rules that make a short text so long that no memory is enough for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import tokenizers

from weft.errors import ModelError

MAX_EXPANSION = 64  # times as long as it was: more is no normalisation of text
LONGEST_RULE = 1 << 10  # characters that a rule may put in
RULES = {"Replace": "content", "Prepend": "prepend", "Precompiled": "precompiled_charsmap"}  # and what each puts in
MAX_MAP = 4 << 20  # characters of a table of SentencePiece; XLM-R has 0.3 million


class _SilencedStderr:
    """While anybody is inside, what the library itself writes to standard error when it panics is not seen: the error says it
    in one line. Threads may be inside together; the last one out puts standard error back."""

    def __init__(self) -> None:
        self._lock, self._inside, self._kept = threading.Lock(), 0, -1

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._kept = self._away()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._kept >= 0:
                os.dup2(self._kept, 2)
                os.close(self._kept)

    def _away(self) -> int:
        """A copy of standard error, which is nowhere now; -1 where there is none, or no descriptor left."""
        try:
            kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return -1
        os.dup2(nowhere, 2)
        os.close(nowhere)
        return kept


_hush = _SilencedStderr()


@contextmanager
def wrap_errors(what: str, *, foreign: bool = True) -> Iterator[None]:
    """Whatever goes wrong in the library inside is a ModelError that begins with `what`; `foreign` where the tokenizer is of a
    file that weft did not write, which may make it panic."""
    try:
        with _hush if foreign else nullcontext():
            yield
    except TypeError:
        raise  # ours: no text was given
    except BaseException as error:
        # the library has no type of its own, and a panic is no Exception; all else goes on its way
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(what, f"{str(error)[:200]}") from None


def parsed(data: bytes, where: str) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json; a damaged file is refused."""
    with wrap_errors(f"{where}: is no tokenizer.json, or a damaged one"):
        return tokenizers.Tokenizer.from_buffer(data)


def _swells(rule: Any, where: str) -> int:
    """How many times as long a text can become by a rule, which may be several."""
    if not isinstance(rule, Mapping):
        return 1
    times, kind = 1, str(rule.get("type"))
    if kind == "Sequence":
        for one in next((rule[name] for name in ("normalizers", "pretokenizers", "decoders") if name in rule), ()):
            times *= _swells(one, where)
        return times
    put, limit = rule.get(RULES.get(kind, "")), MAX_MAP if kind == "Precompiled" else LONGEST_RULE
    size = len(put) if isinstance(put, str) else 0
    if size > limit:
        raise ModelError(where, f"its {kind} holds {size:,} characters", f"at most {limit:,} are read")
    if kind != "Replace":
        return times
    pattern = rule.get("pattern")
    found = pattern.get("String") if isinstance(pattern, Mapping) else None
    # a regular expression may match nothing, before each character
    return max(1, -(-size // len(found))) if found else size + 1


def check_expansion(parts: Mapping[str, Any], where: str) -> None:
    """Refuse a tokenizer.json whose rules make a text much longer than it is."""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        if (times := _swells(parts.get(name), where)) > MAX_EXPANSION:
            raise ModelError(
                where, f"its {name} can make a text {times:,} times as long", f"at most {MAX_EXPANSION} times is read"
            )
