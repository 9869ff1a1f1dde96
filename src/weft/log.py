"""Logs: append-only JSON Lines files. Every line has its own checksum, so that corruption is detected by line."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from weft.errors import LogError, ModelError, ResourceError
from weft.files import dump_json, open_own, refuse_device, wrap_os_errors, write_all

CHECKSUM = "crc32"
MAX_BYTES = 256 << 20  # a usual log has about 200 lines of a few hundred bytes
MAX_COUNT = 1 << 53
METRICS = "metrics.jsonl"  # checkpoints have a copy of it


def _checksum(record: Mapping[str, Any]) -> str:
    """A checksum against accidental corruption, not against forgery."""
    return f"{zlib.crc32(dump_json(record)[:-1]):08x}"


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with its checksum as the last entry."""
    return {**record, CHECKSUM: _checksum(record)}


def check_checksum(content: Any) -> dict[str, Any] | None:
    """The record without its checksum; None if the checksum does not match."""
    if not isinstance(content, dict):
        return None
    record = {name: value for name, value in content.items() if name != CHECKSUM}
    with suppress(ValueError, RecursionError):  # an invalid number, or too deeply nested lists
        return record if content.get(CHECKSUM) == _checksum(record) else None
    return None


def _record(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        return check_checksum(json.loads(line))
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int):
        return abs(value) <= MAX_COUNT
    return isinstance(value, float) and math.isfinite(value)


def _is_valid(record: Mapping[str, Any], texts: bool) -> bool:
    """Whether the record has a step and numbers, and maybe texts: a forged line has a correct checksum, too."""
    step = record.get("step")
    has_types = all(_is_number(value) or (texts and isinstance(value, str)) for value in record.values())
    return has_types and isinstance(step, int) and not isinstance(step, bool) and step >= 0


def _fix(path: Path) -> str:
    return "run weft train again to restore it" if path.name == METRICS else "remove it"


def read_log(path: Path, *, length: int = 0, texts: bool = False) -> list[dict[str, Any]]:
    """The records of a log; empty if there is no file. An incomplete last line, from a killed process, is ignored.

    Args:
        path: The log file.
        length: The number of bytes that must exist, as recorded in a checkpoint.
        texts: Whether records may contain texts, not only numbers.

    Raises:
        LogError: Lines are missing or corrupted.
    """
    refuse_device(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(path, f"log is larger than {MAX_BYTES >> 20} MB")
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise ResourceError(path, f"cannot read: {error.strerror}") from None
    complete = data.rfind(b"\n") + 1
    if complete < length:
        raise LogError(path, f"corrupted: {complete} bytes, but the checkpoint expects {length}", _fix(path))
    records = []
    for number, line in enumerate(data[:complete].split(b"\n")[:-1], 1):
        record = _record(line)
        if record is None:
            raise LogError(f"{path}:{number}", "checksum mismatch; the file is corrupted", _fix(path))
        if not _is_valid(record, texts):
            raise ModelError(f"{path}:{number}", "not a log record of weft; the file is corrupted")
        records.append(record)
    return records


class Log:
    """An append-only JSON Lines file, except for `restore` when a run resumes; `length` is its size in bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with wrap_os_errors(path):
            self._descriptor = open_own(path, os.O_APPEND)
            self.length = self._drop_incomplete_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def _drop_incomplete_line(self) -> int:
        """Remove an incomplete last line, which a killed process left; returns the length of the complete lines."""
        length = os.fstat(self._descriptor).st_size
        if length and os.pread(self._descriptor, 1, length - 1) != b"\n":
            length = self.path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(self._descriptor, length)
        return length

    def write(self, record: Mapping[str, Any]) -> None:
        line = dump_json(with_checksum(record))
        with wrap_os_errors(self.path, "the line was not written"):
            try:
                write_all(self._descriptor, line)
            except OSError:
                with suppress(OSError):  # an incomplete line would make the file unreadable
                    os.ftruncate(self._descriptor, self.length)
                raise
        self.length += len(line)

    def restore(self, content: bytes = b"") -> bool:
        """Restore the log to `content`, as of a checkpoint: later lines are removed, corruption is repaired. Returns whether it
        was corrupted."""
        is_intact = os.pread(self._descriptor, len(content), 0) == content
        with wrap_os_errors(self.path):
            os.ftruncate(self._descriptor, len(content) if is_intact else 0)
            write_all(self._descriptor, b"" if is_intact else content)
        self.length = len(content)
        return not is_intact

    def keep(self, length: int) -> int:
        """Keep the first `length` bytes, up to the first corrupted line; returns the new length."""
        self.length = 0
        for line in os.pread(self._descriptor, length, 0).split(b"\n")[:-1]:
            if _record(line) is None:
                break
            self.length += len(line) + 1
        with wrap_os_errors(self.path):
            os.ftruncate(self._descriptor, self.length)
        return self.length

    def sync(self) -> None:
        with wrap_os_errors(self.path, "its last lines may not survive a power failure"):
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
