"""Logs: files of JSON lines that only grow. Every line ends with a sum of itself, so that damage is noticed, by its line."""

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

SUM = "crc32"
MAX_BYTES = 256 << 20  # bytes; about 200 lines of a few hundred are usual
_LARGEST = 1 << 53  # whole numbers beyond it are no counts
METRICS = "metrics.jsonl"  # checkpoints keep a copy of it


def _sum(record: Mapping[str, Any]) -> str:
    """For damage by chance: who means harm can write another."""
    return f"{zlib.crc32(dump_json(record)[:-1]):08x}"


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a sum of all the rest as its last entry."""
    return {**record, SUM: _sum(record)}


def check_checksum(found: Any) -> dict[str, Any] | None:
    """The record without its sum; None where it is not as it was written."""
    if not isinstance(found, dict):
        return None
    record = {name: value for name, value in found.items() if name != SUM}
    with suppress(ValueError, RecursionError):  # a number that is none, a list within lists without end
        return record if found.get(SUM) == _sum(record) else None
    return None


def _record(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        return check_checksum(json.loads(line))
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int):
        return abs(value) <= _LARGEST
    return isinstance(value, float) and math.isfinite(value)


def _is_of_a_run(record: Mapping[str, Any], texts: bool) -> bool:
    """Whether it is what a run logs, a step and numbers, perhaps texts: who means harm can write any line, with its sum."""
    step = record.get("step")
    fits = all(_is_number(value) or (texts and isinstance(value, str)) for value in record.values())
    return fits and isinstance(step, int) and not isinstance(step, bool) and step >= 0


def _cure(path: Path) -> str:
    return "the weft train that wrote it restores it" if path.name == METRICS else "remove it"


def _missing(path: Path, found: int, wanted: int) -> LogError:
    return LogError(path, f"has {found} bytes of whole lines, but the checkpoint knows {wanted}", f"{_cure(path)}")


def read_log(path: Path, *, length: int = 0, texts: bool = False) -> list[dict[str, Any]]:
    """The records of a log, without a last one that a killed process left torn; none where there is no file. At least the
    first `length` bytes must be there. They hold numbers, or also `texts`."""
    refuse_device(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(path, f"is larger than {MAX_BYTES >> 20} MB", "no log of a run is")
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise ResourceError(path, f"can't be read: {error.strerror}") from None
    whole = data.rfind(b"\n") + 1
    if whole < length:
        raise _missing(path, whole, length)
    found = []
    for number, line in enumerate(data[:whole].split(b"\n")[:-1], 1):
        record = _record(line)
        if record is None:
            raise LogError(path, f"line {number} is not as it was written", f"{_cure(path)}")
        if not _is_of_a_run(record, texts):
            raise ModelError(path, f"line {number} is no record of a run", "the file is damaged")
        found.append(record)
    return found


class Log:
    """A file of JSON lines that only grows, but for `restore` on resume; `length` is its size in bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with wrap_os_errors(path):
            self._descriptor = open_own(path, os.O_APPEND)
            self.length = self._without_torn_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def _without_torn_line(self) -> int:
        """The length of the whole lines; what a killed process left of another is dropped, or the next would follow it."""
        length = os.fstat(self._descriptor).st_size
        if length and os.pread(self._descriptor, 1, length - 1) != b"\n":
            length = self.path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(self._descriptor, length)
        return length

    def write(self, record: Mapping[str, Any]) -> None:
        line = dump_json(with_checksum(record))
        with wrap_os_errors(self.path, "the line is not in it"):
            try:
                write_all(self._descriptor, line)
            except OSError:
                with suppress(OSError):  # a torn line would spoil the file for whoever reads it
                    os.ftruncate(self._descriptor, self.length)
                raise
        self.length += len(line)

    def restore(self, kept: bytes = b"") -> bool:
        """Make the log what somebody has `kept` of it: what came after that is dropped, what was damaged is put right. Whether
        anything was damaged."""
        whole = os.pread(self._descriptor, len(kept), 0) == kept
        with wrap_os_errors(self.path):
            os.ftruncate(self._descriptor, len(kept) if whole else 0)
            write_all(self._descriptor, b"" if whole else kept)
        self.length = len(kept)
        return not whole

    def keep(self, length: int) -> int:
        """Keep the first `length` bytes, up to the first line in them that is not as it was written; the length then."""
        self.length = 0
        for line in os.pread(self._descriptor, length, 0).split(b"\n")[:-1]:
            if _record(line) is None:
                break
            self.length += len(line) + 1
        with wrap_os_errors(self.path):
            os.ftruncate(self._descriptor, self.length)
        return self.length

    def sync(self) -> None:
        with wrap_os_errors(self.path, "its last lines may not survive a power cut"):
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
