"""Leases: of several workers, possibly on several hosts, one at a time owns a piece of work.

The first owner of a piece creates NAME.lease-0001 and rewrites it at intervals. When its content has not changed for the time
that it states, another worker creates NAME.lease-0002 and is the owner from then on. Creating a file is atomic (a hard link),
so one worker succeeds. Numbers are not reused, so an owner that was paused finds the higher number and gives up. Only the owner
writes to a lease. Clocks of hosts are not compared: each worker measures with its own clock how long a content is unchanged.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from weft import files
from weft.errors import ResourceError

MAX_NUMBER = 9999
MAX_BYTES = 4096  # of a lease; a longer one is damaged
MIN_SECONDS, MAX_SECONDS = 0.1, 86400.0
LOST = 0.75  # an owner that could not renew for this fraction of the time gives up, before others take the work
BEATS = 6  # renewals per lease time
HELD, RELEASED, FAILED, RETRIED = "held", "released", "failed", "retried"
_BLOCK = 512  # contents are padded to a multiple of it, so that a renewal does not change the size
_NAME = re.compile(r"(.+)\.lease-(\d{4})", re.DOTALL)
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)


def now() -> float:
    """Seconds of a clock that nobody sets, and that runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class Worker(NamedTuple):
    """A process that takes work."""

    name: str  # unique
    host: str
    process: int


class LeaseContent(NamedTuple):
    """What the file of a lease states."""

    worker: Worker
    seconds: float  # without a change for this time, the lease has expired
    # or "released": the owner stopped; "failed": possibly because of the host; "retried": failures before do not count
    state: str = HELD
    step: int = 0  # of training, when the owner began
    code: int = 0  # exit code, if it failed
    reason: str = ""
    beat: int = 0  # number of renewals

    @property
    def is_held(self) -> bool:
        return self.state == HELD

    def to_bytes(self) -> bytes:
        fields = {**self._asdict(), "worker": self.worker._asdict(), "reason": self.reason[:400]}
        data = json.dumps(fields).encode()
        return data.ljust(-(-len(data) // _BLOCK) * _BLOCK - 1) + b"\n" if len(data) % _BLOCK else data


def _is_int(value: Any, maximum: int = 2**53) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum


def parse(data: bytes) -> LeaseContent | None:
    """The content of a lease; None if it is damaged."""
    try:
        fields = json.loads(data)
        worker = Worker(**fields["worker"])
        content = LeaseContent(**{**fields, "worker": worker})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (worker.name, worker.host, content.reason)
    seconds = content.seconds
    is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    is_valid = is_time and MIN_SECONDS <= seconds <= MAX_SECONDS and content.state in (HELD, RELEASED, FAILED, RETRIED)
    is_valid = is_valid and all(isinstance(text, str) and text.isprintable() and len(text) <= 400 for text in texts)
    counts = (worker.process, content.step, content.code, content.beat)
    return content if is_valid and all(map(_is_int, counts)) else None


def read_bytes(path: Path) -> bytes:
    """The bytes of a lease; empty if it is not a readable regular file. Links are not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, MAX_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def create(path: Path, data: bytes) -> bool:
    """Create a file with its content, unless it exists; return whether this call created it. Of several callers, on any hosts
    that share the directory, one succeeds."""
    temp = files.temporary_path(path)
    with files.wrap_os_errors(path):
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with files.wrap_os_errors(path):
            try:
                files.write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return _link(temp, path)
    finally:
        with suppress(OSError):
            os.unlink(temp)


def _link(temp: Path, path: Path) -> bool:
    try:
        os.link(temp, path)
    except FileExistsError:
        # over a network, the request may have been repeated after it had succeeded
        return os.stat(temp).st_nlink == 2
    except OSError as error:
        if error.errno in _NO_LINKS:
            problem = "the file system has no hard links, which workers need"
            raise ResourceError(path.parent, problem, "use a directory on another file system") from None
        with files.wrap_os_errors(path):
            raise
    return True


def _rewrite(path: Path, data: bytes) -> None:
    """Replace the content of a lease in place: over NFS, a reader that opens it gets the new content."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Lease:
    """A lease that this process owns, unless it is lost. `renew` is called from a thread. A context manager, which releases
    it."""

    def __init__(self, directory: Path, name: str, number: int, content: LeaseContent) -> None:
        self.directory, self.name, self.number, self.content = directory, name, number, content
        self.path = lease_path(directory, name, number)
        self.lost = ""  # why this process no longer owns it
        self._renewal_time = now()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end()

    def check(self) -> bool:
        """Whether this process still owns the work."""
        if not self.lost and os.path.lexists(lease_path(self.directory, self.name, self.number + 1)):
            owner = parse(read_bytes(lease_path(self.directory, self.name, self.number + 1)))
            taker = "another worker" if owner is None else f"{owner.worker.name}"
            self.lost = f"taken by {taker}"
        pause = now() - self._renewal_time
        if not self.lost and pause > LOST * self.content.seconds:
            self.lost = f"not renewed for {pause:.0f} s"
        return not self.lost

    def renew(self) -> bool:
        """Renew the lease; returns whether this process still owns it."""
        time_before = now()
        if not self.check():
            return False
        content = self.content._replace(beat=self.content.beat + 1)
        try:
            _rewrite(self.path, content.to_bytes())
        except FileNotFoundError:
            self.lost = "its file was removed"
        except OSError:  # the file server may come back in time
            return True
        else:
            self.content, self._renewal_time = content, time_before
        return self.check()

    def end(self, state: str = RELEASED, code: int = 0, reason: str = "") -> None:
        """Let others take the work at once. Harmless if the lease is lost: nobody else uses its number."""
        text = "".join(char if char.isprintable() else " " for char in reason)[:400]
        self.lost = self.lost or "ended"
        with suppress(OSError):  # then it expires
            _rewrite(self.path, self.content._replace(state=state, code=code, reason=text).to_bytes())


def lease_path(directory: Path, name: str, number: int) -> Path:
    return directory / f"{name}.lease-{number:04d}"


class _Seen(NamedTuple):
    """A content, and since when it has been seen unchanged."""

    number: int
    data: bytes
    since: float


class Leases:
    """The leases in a directory, from the view of one worker."""

    def __init__(self, directory: Path, worker: Worker, seconds: float) -> None:
        self.directory, self.worker, self.seconds = directory, worker, seconds
        self._seen: dict[str, _Seen] = {}

    def numbers(self) -> dict[str, int]:
        """The highest number of each name that has a lease."""
        highest: dict[str, int] = {}
        with suppress(FileNotFoundError):
            for entry in os.listdir(self.directory):
                if match := _NAME.fullmatch(entry):
                    highest[match[1]] = max(highest.get(match[1], 0), int(match[2]))
        return highest

    def read(self, name: str, number: int) -> LeaseContent | None:
        """The content of a lease; None if it is damaged or missing."""
        return parse(read_bytes(lease_path(self.directory, name, number)))

    def history(self, name: str, number: int) -> list[LeaseContent | None]:
        """The contents of all leases of a name up to a number, oldest first."""
        return [self.read(name, earlier) for earlier in range(1, number + 1)]

    def is_free(self, name: str, number: int) -> bool:
        """Whether the work with this highest number has no owner: it was released, or this worker has seen it unchanged for as
        long as it states."""
        if not number:
            return True
        data = read_bytes(lease_path(self.directory, name, number))
        content = parse(data)
        if content is not None and not content.is_held:
            return True
        seen, time_now = self._seen.get(name), now()
        if seen is None or (seen.number, seen.data) != (number, data):
            self._seen[name] = _Seen(number, data, time_now)
            return False
        return time_now - seen.since >= (self.seconds if content is None else content.seconds)

    def claim(self, name: str, number: int, step: int = 0) -> Lease | None:
        """Take the work after the lease with this number; None if another worker was faster."""
        if number >= MAX_NUMBER:
            raise ResourceError(self.directory, f"{name} has too many leases", "remove them")
        content = LeaseContent(self.worker, self.seconds, step=step)
        lease = Lease(self.directory, name, number + 1, content)
        self._seen.pop(name, None)
        return lease if create(lease.path, content.to_bytes()) else None


def file_system_time(directory: Path) -> float:
    """The time by the clock of the file system, in which it also states the time of each change."""
    probe = files.temporary_path(directory / "clock")
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return os.stat(probe).st_mtime
    except OSError:  # a directory that is not writable
        return time.time()
    finally:
        with suppress(OSError):
            os.unlink(probe)
