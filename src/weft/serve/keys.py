"""Keys that clients present. They are compared as hashes, in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from weft.errors import UsageError
from weft.serve.errors import Unauthorized

MIN_KEY_CHARS = 8
FIX = "send the header Authorization: Bearer KEY"


class Keys:
    """The keys that are accepted; without any, everybody is."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._hashes = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def check(self, key: str | None) -> None:
        """Refuse a missing or unknown key."""
        if not self._hashes:
            return
        if not key:
            raise Unauthorized("key", "missing", FIX)
        given = hashlib.sha256(key.encode(errors="replace")).digest()
        # all of them, so that the time tells nothing
        if not sum(hmac.compare_digest(given, known) for known in self._hashes):
            raise Unauthorized("key", "unknown", FIX)


def parse_keys(text: str, where: str) -> list[str]:
    """The keys of a text: one per line; empty lines and those that start with # are left out."""
    lines = [line.strip() for line in text.split("\n")]
    keys = [line for line in lines if line and not line.startswith("#")]
    for number, key in enumerate(keys, 1):
        if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
            problem = f"key {number} is not {MIN_KEY_CHARS} or more printable ASCII characters without spaces"
            raise UsageError(where, problem, "python -c 'import secrets; print(secrets.token_urlsafe())' prints one")
    if not keys:
        raise UsageError(where, "contains no key")
    return keys


def read_keys(path: Path) -> list[str]:
    """The keys of a file."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError("key_file", f"{path} cannot be read: {reason}") from None
    return parse_keys(text, "key_file")
