"""The runs of a comparison as cells that workers take: leases, the directories that workers train in, and the outcomes.

In DIR/cells, NAME.lease-0002 is the second lease of a run, NAME.run-0002 is where its owner trains, and NAME.ended.json is
written when the run has ended. Each lease has its own directory. So a worker that was paused and lost its lease cannot change
the run of the next owner, even on file systems whose locks do not reach other hosts. The next owner starts from a copy of the
last checkpoint. A trained run is renamed to DIR/NAME.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from weft import files
from weft.comparison.lease import (
    FAILED,
    MAX_BYTES,
    RETRIED,
    Lease,
    LeaseContent,
    Leases,
    Worker,
    create,
    lease_path,
    read_bytes,
)
from weft.comparison.plan import PlannedRun
from weft.comparison.train import Outcome
from weft.errors import InUseError, ResourceError, WeftError
from weft.log import check_checksum, with_checksum
from weft.runs.config import RunConfig
from weft.runs.finished import is_finished
from weft.runs.machine import host_name
from weft.runs.run_dir import RunDir
from weft.training import checkpoint

CELLS = "cells"
MAX_HOST_FAILURES = 2  # a run that failed on this many leases for a reason that may be the host's has failed
MAX_DEATHS = 4  # of workers in a row without a new checkpoint
HOST_CODES = (1, ResourceError.exit_code)  # memory, disk, or a process that was killed: another host may succeed
WAIT_SECONDS = 0.2  # between two looks at a lease that may have expired
LINKED = ("data", "checkpoints")  # their files are written once, so a copy can share them
_RUN = re.compile(r"(.+)\.run-(\d{4})", re.DOTALL)


class Ended(NamedTuple):
    """How a run ended."""

    code: int  # exit code; 0: trained and evaluated
    reason: str
    host: str


def this_worker() -> Worker:
    """This process as a worker."""
    host, process = host_name(), os.getpid()
    return Worker(f"{host}-{process}-{os.urandom(4).hex()}", host, process)


class Cells:
    """The cells of one directory of runs: that of the comparison, or that of its trials."""

    def __init__(self, root: Path, worker: Worker, seconds: float) -> None:
        self.root, self.directory = root, root / CELLS
        self.leases = Leases(self.directory, worker, seconds)

    def make_directory(self) -> None:
        files.make_subdirectory(self.directory)

    # ---- outcomes

    def _record_path(self, name: str) -> Path:
        return self.directory / f"{name}.ended.json"

    def ended(self, name: str) -> Ended | None:
        """How a run ended; None if it has not, or if its record is damaged or its directory is gone."""
        path = self._record_path(name)
        record = _parse_record(read_bytes(path)) if os.path.lexists(path) else None
        if record is None or (not record.code and not os.path.isfile(RunDir(self.root / name).weights)):
            return None
        return record

    def record(self, planned: PlannedRun, code: int, reason: str = "") -> None:
        """Record how a run ended; the first record counts."""
        name = planned.output_dir.name
        path = self._record_path(name)
        fields = {"code": code, "reason": reason[:1000], "host": self.leases.worker.host}
        if os.path.lexists(path) and self.ended(name) is None:
            files.remove(path)  # damaged
        create(path, files.dump_json(with_checksum(fields)))

    def outcome(self, planned: PlannedRun) -> Outcome | None:
        ended = self.ended(planned.output_dir.name)
        return None if ended is None else Outcome(planned, ended.code, ended.reason)

    def retry_failed(self) -> int:
        """Forget the failures, so that workers take these runs again; returns their number."""
        names = [path.name.removesuffix(".ended.json") for path in sorted(self.directory.glob("*.ended.json"))]
        failed = [name for name in names if (ended := self.ended(name)) is None or ended.code]
        numbers = self.leases.numbers()
        for name in failed:
            if (lease := self.leases.claim(name, numbers.get(name, 0))) is not None:
                lease.end(RETRIED)  # the failures before it do not count
                files.remove(self._record_path(name))
        return len(failed)

    # ---- leases

    def claim(self, planned: PlannedRun, number: int) -> Lease | None:
        """Take a run whose highest lease has this number; None if it has an owner."""
        name = planned.output_dir.name
        if not self.leases.is_free(name, number):
            return None
        return self.leases.claim(name, number, self.step(planned))

    def previous_owner(self, lease: Lease) -> LeaseContent | None:
        return self.leases.read(lease.name, lease.number - 1) if lease.number > 1 else None

    def _earlier(self, lease: Lease) -> list[LeaseContent | None]:
        """The leases before this one, since failures were last declared void."""
        earlier = self.leases.history(lease.name, lease.number - 1)
        retries = [index for index, content in enumerate(earlier) if content is not None and content.state == RETRIED]
        return earlier[retries[-1] + 1 :] if retries else earlier

    def host_failures(self, lease: Lease) -> list[LeaseContent]:
        """The leases before this one on which the run failed, possibly because of the host."""
        return [content for content in self._earlier(lease) if content is not None and content.state == FAILED]

    def failure(self, lease: Lease) -> Ended | None:
        """Why a run is not tried again: it failed on several leases, or workers died and left no new checkpoint."""
        failures = self.host_failures(lease)
        if len(failures) >= MAX_HOST_FAILURES:
            last = failures[-1]
            return Ended(last.code or 1, last.reason, last.worker.host)
        recent = self._earlier(lease)[-MAX_DEATHS:]
        steps = {content.step for content in recent if content is not None and content.is_held}
        have_died = len(recent) == MAX_DEATHS and all(content is not None and content.is_held for content in recent)
        if have_died and steps == {lease.content.step}:
            hosts = ", ".join(dict.fromkeys(content.worker.host for content in recent if content is not None))
            return Ended(1, f"{MAX_DEATHS} workers died while training it (on {hosts})", hosts)
        return None

    # ---- directories of owners

    def run_dirs(self, name: str) -> dict[int, Path]:
        """The directories that owners of a run have trained in, by the numbers of their leases."""
        matches = [(_RUN.fullmatch(path.name), path) for path in self.directory.iterdir()]
        found = {int(match[2]): path for match, path in matches if match and match[1] == name and not path.is_symlink()}
        return dict(sorted(found.items()))

    def current_dir(self, planned: PlannedRun) -> Path:
        """The directory with the newest state of a run."""
        return next(reversed(self.run_dirs(planned.output_dir.name).values()), planned.output_dir)

    def step(self, planned: PlannedRun) -> int:
        """The last checkpoint of a run."""
        return max((int(name) for path in self._states(planned) for name in checkpoint.names(path)), default=0)

    def _states(self, planned: PlannedRun) -> list[Path]:
        paths = [planned.output_dir, *self.run_dirs(planned.output_dir.name).values()]
        return [path for path in paths if path.is_dir()]

    def prepare(self, planned: PlannedRun, lease: Lease) -> Path:
        """The directory for the owner of a lease to train in, with the last state of the run."""
        path = self.directory / f"{lease.name}.run-{lease.number:04d}"
        files.remove(path)
        earlier = [state for number, state in self.run_dirs(lease.name).items() if number < lease.number]
        if earlier:
            source = max(reversed(earlier), key=lambda state: max(map(int, checkpoint.names(state)), default=-1))
            _copy_run(source, path)
        elif planned.output_dir.is_dir():
            files.refuse_link(planned.output_dir)
            with files.wrap_os_errors(planned.output_dir):  # begun by a comparison without workers
                os.rename(planned.output_dir, path)
        return path

    def publish(self, planned: PlannedRun, lease: Lease, config: RunConfig) -> None:
        """Rename the trained run to its name in the comparison, and remove what earlier owners left."""
        path = self.directory / f"{lease.name}.run-{lease.number:04d}"
        if not is_finished(planned.output_dir, config):
            try:
                files.publish(path, planned.output_dir)
            except ResourceError:
                if not is_finished(planned.output_dir, config):  # not published by a worker that had lost its lease
                    raise
        for old in self.run_dirs(lease.name).values():
            with suppress(WeftError):  # its owner may be writing to it
                files.remove(old)


def _parse_record(data: bytes) -> Ended | None:
    """How a run ended; None if the record is damaged."""
    if not data or len(data) >= MAX_BYTES:
        return None
    with suppress(ValueError, RecursionError):
        fields: dict[str, Any] | None = check_checksum(json.loads(data))
        code, reason, host = (None,) * 3 if fields is None else (fields.get(name) for name in Ended._fields)
        if isinstance(code, int) and not isinstance(code, bool) and isinstance(reason, str) and isinstance(host, str):
            return Ended(code, reason, host) if 0 <= code < 256 else None
    return None


def _copy_run(source: Path, target: Path) -> None:
    """Copy a run that its owner may still be writing: a checkpoint that is incomplete in the copy is found and removed when
    training resumes."""
    temp = files.temporary_path(target)
    with files.wrap_os_errors(target):
        _copy_directory(source, temp, link=False)
        os.rename(temp, target)


def _copy_directory(source: Path, target: Path, *, link: bool) -> None:
    os.mkdir(target)
    for path in sorted(source.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        with suppress(FileNotFoundError):  # removed meanwhile
            if path.is_dir():
                _copy_directory(path, target / path.name, link=link or path.name in LINKED)
            elif path.is_file():
                _copy_file(path, target / path.name, link=link)


def _copy_file(source: Path, target: Path, *, link: bool) -> None:
    if link:
        try:
            return os.link(source, target)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise
    shutil.copyfile(source, target)


def check_no_workers(output_dir: Path, worker: Worker) -> None:
    """Raise InUseError if a worker is active; of leases that may have expired, this waits until that is certain."""
    for root in (output_dir, output_dir / "tune"):
        cells = Cells(root, worker, 60.0)
        for name, number in cells.leases.numbers().items():
            if cells.ended(name) is None:
                _wait_for_expiry(cells, name, number)


def _wait_for_expiry(cells: Cells, name: str, number: int) -> None:
    path = lease_path(cells.directory, name, number)
    content = read_bytes(path)
    while not cells.leases.is_free(name, number):
        if read_bytes(path) != content:
            owner = cells.leases.read(name, number)
            host = "" if owner is None else f" on {owner.worker.host} (process {owner.worker.process})"
            raise InUseError(cells.root, f"a worker{host} is training {name}", "stop it first")
        time.sleep(WAIT_SECONDS)
