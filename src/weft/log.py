"""Logs: append-only JSON Lines files. Every line has a checksum, so that a corrupted line is detected."""

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
from weft.files import dump_json, open_for_update, refuse_device, wrap_os_errors, write_all

CHECKSUM = "crc32"
MAX_BYTES = 256 << 20  # a usual log has about 200 lines of a few hundred bytes
MAX_INTEGER = 1 << 53  # larger integers are not exact as float64
METRICS = "metrics.jsonl"  # checkpoints include a copy


def _checksum(record: Mapping[str, Any]) -> str:
    """CRC-32 of a record, which detects accidental corruption but not forgery."""
    return f"{zlib.crc32(dump_json(record)[:-1]):08x}"


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with its checksum as the last entry."""
    return {**record, CHECKSUM: _checksum(record)}


def check_checksum(content: Any) -> dict[str, Any] | None:
    """The record without its checksum; None if the checksum does not match."""
    if not isinstance(content, dict):
        return None
    record = {key: value for key, value in content.items() if key != CHECKSUM}
    with suppress(ValueError, RecursionError):  # an invalid number, or lists that are nested too deeply
        return record if content.get(CHECKSUM) == _checksum(record) else None
    return None


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None if it is corrupted."""
    with suppress(ValueError, RecursionError):
        return check_checksum(json.loads(line))
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int):
        return abs(value) <= MAX_INTEGER
    return isinstance(value, float) and math.isfinite(value)


def _is_valid(record: Mapping[str, Any], allow_text: bool) -> bool:
    """Whether a record has a step, and only numbers or, with `allow_text`, strings. A forged line has a valid checksum."""
    step = record.get("step")
    has_valid_types = all(_is_number(value) or (allow_text and isinstance(value, str)) for value in record.values())
    return has_valid_types and isinstance(step, int) and not isinstance(step, bool) and step >= 0


def _fix(path: Path) -> str:
    return "run weft train again to restore it" if path.name == METRICS else "remove it"


def read_log(path: Path, *, min_bytes: int = 0, allow_text: bool = False) -> list[dict[str, Any]]:
    """The records of a log; an empty list if it does not exist. An incomplete last line, of a killed process, is ignored.

    Args:
        path: The log file.
        min_bytes: The minimum size of the log, as recorded in a checkpoint.
        allow_text: Whether records may contain strings, not only numbers.

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
    num_bytes = data.rfind(b"\n") + 1  # of complete lines
    if num_bytes < min_bytes:
        raise LogError(path, f"corrupted: {num_bytes} bytes, but the checkpoint expects {min_bytes}", _fix(path))
    records = []
    for number, line in enumerate(data[:num_bytes].split(b"\n")[:-1], 1):
        record = _parse_line(line)
        if record is None:
            raise LogError(f"{path}:{number}", "checksum mismatch; the file is corrupted", _fix(path))
        if not _is_valid(record, allow_text):
            raise ModelError(f"{path}:{number}", "not a log record of weft; the file is corrupted")
        records.append(record)
    return records


class Log:
    """An append-only JSON Lines file of `num_bytes` bytes. Only a resumed run removes lines, with `restore` or `truncate`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with wrap_os_errors(path):
            self._descriptor = open_for_update(path, os.O_APPEND)
            self.num_bytes = self._drop_incomplete_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def _drop_incomplete_line(self) -> int:
        """Remove an incomplete last line, left by a killed process. Return the size of the log."""
        num_bytes = os.fstat(self._descriptor).st_size
        if num_bytes and os.pread(self._descriptor, 1, num_bytes - 1) != b"\n":
            num_bytes = self.path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(self._descriptor, num_bytes)
        return num_bytes

    def write(self, record: Mapping[str, Any]) -> None:
        line = dump_json(with_checksum(record))
        with wrap_os_errors(self.path, "the line was not written"):
            try:
                write_all(self._descriptor, line)
            except OSError:
                with suppress(OSError):  # an incomplete line would make the file unreadable
                    os.ftruncate(self._descriptor, self.num_bytes)
                raise
        self.num_bytes += len(line)

    def restore(self, content: bytes = b"") -> bool:
        """Restore the log to `content`, its copy in a checkpoint: remove later lines and repair corruption. Return whether it
        was corrupted."""
        is_intact = os.pread(self._descriptor, len(content), 0) == content
        with wrap_os_errors(self.path):
            os.ftruncate(self._descriptor, len(content) if is_intact else 0)
            write_all(self._descriptor, b"" if is_intact else content)
        self.num_bytes = len(content)
        return not is_intact

    def truncate(self, num_bytes: int) -> int:
        """Truncate the log to `num_bytes`, or before the first corrupted line. Return the new size."""
        self.num_bytes = 0
        for line in os.pread(self._descriptor, num_bytes, 0).split(b"\n")[:-1]:
            if _parse_line(line) is None:
                break
            self.num_bytes += len(line) + 1
        with wrap_os_errors(self.path):
            os.ftruncate(self._descriptor, self.num_bytes)
        return self.num_bytes

    def sync(self) -> None:
        with wrap_os_errors(self.path, "its last lines may not survive a power failure"):
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
