"""Leases: one owner at a time, also with many processes, pauses, damaged files and clocks that differ."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.comparison import lease as leasing
from weft.comparison.lease import (
    FAILED,
    RELEASED,
    LeaseContent,
    Leases,
    Worker,
    create,
    file_system_time,
    lease_path,
    parse,
)
from weft.errors import ResourceError

SRC = Path(__file__).parents[1] / "src"
SECONDS = 0.4


class Clock:
    """A clock that tests set; each worker may have its own."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leasing, "now", clock)
    return clock


def leases(directory: Path, name: str = "a", seconds: float = 10.0) -> Leases:
    return Leases(directory, Worker(f"{name}-1", name, 1), seconds)


def try_claim(leases: Leases, name: str = "run-0") -> leasing.Lease | None:
    number = leases.numbers().get(name, 0)
    return leases.claim(name, number) if leases.is_free(name, number) else None


def test_one_owner_until_the_lease_expires_or_is_released(tmp_path, clock):
    a, b = leases(tmp_path, "a"), leases(tmp_path, "b")
    first = try_claim(a)
    assert first is not None and first.number == 1 and try_claim(b) is None and try_claim(a) is None
    for _ in range(20):  # renewed: it never expires
        clock.time += 5.0
        assert first.renew() and try_claim(b) is None
    clock.time += 9.9
    assert try_claim(b) is None
    clock.time += 0.2  # 10 seconds since b has seen this content
    second = try_claim(b)
    assert second is not None and second.number == 2
    assert not first.renew() and first.lost == "taken by b-1"
    second.end()
    third = try_claim(a)
    assert third is not None and third.number == 3 and not second.check()


def test_expiry_counts_from_the_first_look_not_from_the_times_of_files(tmp_path, clock):
    """Clocks of hosts and file servers may differ by any amount."""
    a, b = leases(tmp_path, "a"), leases(tmp_path, "b")
    first = try_claim(a)
    assert first is not None
    for stamp in (0, time.time() + 1e9):
        os.utime(first.path, (stamp, stamp))
        assert try_claim(b) is None
    clock.time += 9.0
    assert try_claim(b) is None
    clock.time += 2.0
    assert try_claim(b) is not None


def test_an_owner_that_was_paused_gives_up_before_others_may_take_the_work(tmp_path, clock):
    a = leases(tmp_path, "a")
    first = try_claim(a)
    assert first is not None
    clock.time += 7.4
    assert first.check() and first.renew()
    clock.time += 7.6  # 3/4 of the time
    assert not first.check() and not first.renew() and first.lost == "not renewed for 8 s"
    first.end()
    assert try_claim(a) is not None  # at once: it was released


def test_a_write_that_hangs_does_not_keep_the_lease(tmp_path, clock, monkeypatch):
    first = try_claim(leases(tmp_path))
    assert first is not None
    rewrite = leasing._rewrite

    def hangs(path: Path, data: bytes) -> None:
        clock.time += 20.0
        rewrite(path, data)

    monkeypatch.setattr(leasing, "_rewrite", hangs)
    assert not first.renew()


def test_a_file_server_may_fail_for_a_while(tmp_path, clock, monkeypatch):
    first = try_claim(leases(tmp_path))
    assert first is not None

    def fails(path: Path, data: bytes) -> None:
        raise OSError(errno.EIO, "down")

    with monkeypatch.context() as patch:
        patch.setattr(leasing, "_rewrite", fails)
        clock.time += 5.0
        assert first.renew()
        clock.time += 1.0
        assert first.renew()
    assert first.renew()
    clock.time += 6.0
    assert first.renew()  # the last renewal counts


def test_a_removed_lease_is_lost(tmp_path):
    first = try_claim(leases(tmp_path))
    assert first is not None
    first.path.unlink()
    assert not first.renew() and first.lost == "its file was removed" and not first.path.exists()


HOSTILE = [
    b"",
    b"{",
    b"[1]",
    b"null",
    b"\xff\xfe",
    b"[" * 4000,
    b'{"worker": {"name": "x", "host": "y", "process": 1}}',
    json.dumps(LeaseContent(Worker("x", "y", 1), 1e300)._asdict()).encode(),
    json.dumps(
        {**LeaseContent(Worker("x", "y", 1), 5.0)._asdict(), "worker": {"name": "\x1b[2J", "host": "", "process": 1}}
    ).encode(),
    json.dumps(
        {**LeaseContent(Worker("x", "y", 1), 5.0)._asdict(), "worker": {"name": "x", "host": "", "process": -1}}
    ).encode(),
    json.dumps({**LeaseContent(Worker("x", "y", 1), 5.0)._asdict(), "state": ["held"]}).encode(),
    json.dumps({**LeaseContent(Worker("x", "y", 1), 5.0)._asdict(), "seconds": float("nan")}).encode(),
    b"x" * 100_000,
]


@pytest.mark.parametrize("data", HOSTILE)
def test_a_damaged_lease_expires_like_any_other(tmp_path, clock, data):
    a = leases(tmp_path)
    lease_path(tmp_path, "run-0", 1).write_bytes(data)
    assert a.read("run-0", 1) is None and try_claim(a) is None
    clock.time += 10.0
    claimed = try_claim(a)
    assert claimed is not None and claimed.number == 2


def test_links_pipes_and_directories_are_not_followed(tmp_path, clock):
    (tmp_path / "secret").write_bytes(LeaseContent(Worker("x", "y", 1), 5.0, state=RELEASED).to_bytes())
    directory = tmp_path / "cells"
    directory.mkdir()
    lease_path(directory, "link", 1).symlink_to(tmp_path / "secret")
    os.mkfifo(lease_path(directory, "pipe", 1))
    lease_path(directory, "directory", 1).mkdir()
    a = leases(directory)
    for name in ("link", "pipe", "directory"):
        assert try_claim(a, name) is None
    clock.time += 10.0
    for name in ("link", "pipe", "directory"):
        claimed = try_claim(a, name)
        assert claimed is not None and claimed.number == 2
    assert parse((tmp_path / "secret").read_bytes()) is not None


def test_other_names_are_ignored_and_numbers_end(tmp_path, clock):
    for name in ("run-0.lease-1", "run-0.lease-00001", "run-0.ended.json", ".lease-0001", "run-0.lease-x001"):
        (tmp_path / name).write_bytes(b"")
    a = leases(tmp_path)
    assert a.numbers() == {}
    lease_path(tmp_path, "run-0", 9999).write_bytes(LeaseContent(Worker("x", "y", 1), 5.0, state=RELEASED).to_bytes())
    with pytest.raises(ResourceError, match="run-0 has too many leases"):
        try_claim(a)


def test_contents_survive_the_file(tmp_path):
    content = LeaseContent(Worker("node-1-ab", "node", 77), 120.0, FAILED, 40, 5, "no space left on disk", 3)
    data = content.to_bytes()
    assert len(data) % 512 == 0 and parse(data) == content
    first = try_claim(leases(tmp_path))
    assert first is not None
    size = first.path.stat().st_size
    assert first.renew() and first.path.stat().st_size == size  # a reader never sees half of two contents of different size
    first.end(FAILED, 5, "a\nb" + "x" * 5000)
    stored = parse(first.path.read_bytes())
    assert stored is not None and stored.reason == "a b" + "x" * 397 and stored.state == FAILED
    assert parse(LeaseContent(Worker("x", "y", 1), 5.0).to_bytes()) is not None


def test_create_is_exclusive_and_leaves_nothing_behind(tmp_path, monkeypatch):
    assert create(tmp_path / "x", b"1") and not create(tmp_path / "x", b"2")
    assert (tmp_path / "x").read_bytes() == b"1" and sorted(path.name for path in tmp_path.iterdir()) == ["x"]
    link = os.link

    def repeated(source: Path, target: Path) -> None:
        link(source, target)  # the server did it, but the answer was lost; the request is sent again
        link(source, target)

    monkeypatch.setattr(leasing.os, "link", repeated)
    assert create(tmp_path / "y", b"1")

    def unsupported(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(leasing.os, "link", unsupported)
    with pytest.raises(ResourceError, match="no hard links"):
        create(tmp_path / "z", b"1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_the_clock_of_the_file_system(tmp_path):
    (tmp_path / "x").touch()
    assert 0 <= file_system_time(tmp_path) - (tmp_path / "x").stat().st_mtime < 5
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert file_system_time(tmp_path / "missing") > 0


STRESS = """
import os, random, sys, time
from pathlib import Path
from weft.comparison.lease import Leases, Worker
directory, seed = Path(sys.argv[1]), int(sys.argv[2])
generator = random.Random(seed)
leases = Leases(directory, Worker(f"w-{seed}", "h", os.getpid()), 60.0)
end = time.monotonic() + 2
while time.monotonic() < end:
    name = generator.choice("ab")
    number = leases.numbers().get(name, 0)
    lease = leases.claim(name, number) if leases.is_free(name, number) else None
    if lease is None:
        time.sleep(0.002)
        continue
    # the work: alone in it, or this fails
    marker = directory / f"{name}.busy"
    descriptor = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    for _ in range(generator.randrange(3)):
        time.sleep(0.01)
        assert lease.renew(), lease.lost
    os.unlink(marker)
    os.close(descriptor)
    with open(directory / "log", "a") as log:
        log.write(f"{name} {lease.number}\\n")
    lease.end()
"""


def start(code: str, *words: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=environment, stderr=subprocess.PIPE)


def test_many_processes_never_own_the_same_work_at_once(tmp_path):
    processes = [start(STRESS, tmp_path, seed) for seed in range(8)]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, errors
    lines = (tmp_path / "log").read_text().split("\n")[:-1]
    assert len(lines) > 50 and len(set(lines)) == len(lines)  # each number once
    for name in "ab":
        numbers = sorted(int(line.split()[1]) for line in lines if line.startswith(name))
        assert numbers == list(range(1, len(numbers) + 1))


RENEW = """
import os, sys, time
from pathlib import Path
from weft.comparison.lease import Leases, Worker
leases = Leases(Path(sys.argv[1]), Worker(f"w-{os.getpid()}", "h", os.getpid()), 0.5)
lease = leases.claim("a", 0)
print("ready", flush=True)
while lease.renew():
    time.sleep(0.05)
sys.exit(lease.lost)
"""


def test_a_stopped_process_loses_its_lease_and_notices(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-c", RENEW, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        mine = leases(tmp_path, "mine", SECONDS)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            assert try_claim(mine, "a") is None
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        while (claimed := try_claim(mine, "a")) is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGCONT)
        assert process.wait(10) == 1 and process.stderr.read().strip() in (b"taken by mine-1", b"not renewed for 1 s")
        assert claimed.number == 2 and claimed.renew()
