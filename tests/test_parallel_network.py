"""Processes on several hosts: addresses, reports on every host, the model of a step's time, and emulated hosts that fail."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from weft.cli import group as cli_group
from weft.errors import GroupError, UsageError
from weft.parallel.group import Group
from weft.parallel.heartbeat import LOST_SECONDS, Failure, Heartbeats, Report
from weft.parallel.interface import address_towards, interface_with, is_loopback
from weft.parallel.join import Place, _check_address

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from _hosts import LinkConfig, emulated_hosts, missing_requirement
from _link_emulator import Emulator
from _step_cost import Exchange, Layout, Network, buckets, ddp_step, fsdp_step
from parallel_network import LINK, Benchmark

HOSTS = ("a", "a", "b", "b")

# ---- where processes listen


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are found on Linux")
def test_the_interface_is_that_of_the_route() -> None:
    assert address_towards("127.0.0.1", 1) == "127.0.0.1" and interface_with("127.0.0.1") == "lo"
    assert interface_with("192.0.2.1") is None and address_towards("no.such.host.invalid", 1) is None
    assert is_loopback("127.0.1.1") and is_loopback("::1") and not is_loopback("10.0.0.1")


def test_gloo_listens_on_the_route_unless_the_user_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_group, "address_towards", lambda host, port: "10.0.0.2")
    monkeypatch.setattr(cli_group, "interface_with", {"10.0.0.2": "eth1"}.get)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert cli_group._pick_interface("a", 1) is None and os.environ["GLOO_SOCKET_IFNAME"] == "eth0"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert cli_group._pick_interface("a", 1) == "10.0.0.2" and os.environ["GLOO_SOCKET_IFNAME"] == "eth1"


def test_an_address_that_other_hosts_cannot_reach_is_refused() -> None:
    place = Place(0, 2, 0, "a", "a", 29500, own_address="127.0.1.1")
    _check_address(place, ["a", "a"])
    _check_address(place._replace(own_address="10.0.0.1"), ["a", "b"])
    with pytest.raises(GroupError) as caught:
        _check_address(place, ["a", "b"])
    problem = "rank 0 (host a) would listen on 127.0.1.1, where other hosts cannot reach it"
    assert str(caught.value) == f"a:29500: {problem}; set GLOO_SOCKET_IFNAME to the network interface"


# ---- who reports a failure


def test_every_host_reports_a_failure_once() -> None:
    reports = [not cli_group._reports_elsewhere(Group(rank, 4, HOSTS), Failure(3, 5, "disk")) for rank in range(4)]
    assert reports == [True, False, False, True]  # the first one of the other host, and the one that failed
    assert not cli_group._reports_elsewhere(Group(1, 4, HOSTS), None)  # the store is gone: nobody knows of another report


class Blocked:
    """Signs of life in a store that does not answer."""

    def post(self, failure: Failure) -> None:
        threading.Event().wait()


def test_a_process_ends_although_the_store_is_lost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(cli_group, "POST_SECONDS", 0.05)
    group = Group(1, 2, ("a", "b"), heartbeats=Blocked())  # type: ignore[arg-type]
    cli_group._on_lost(group, 0)
    assert codes == [7]
    expected = "weft: error: rank 0 (host a) does not answer any more; the last checkpoint is intact\n"
    assert capsys.readouterr().err == expected


class Store:
    """A store with signs of life."""

    def multi_get(self, keys: list[str]) -> list[str]:
        return ["[1, 0]"] * len(keys)

    def set(self, key: str, value: str) -> None: ...

    def check(self, keys: list[str]) -> bool:
        return False

    def compare_set(self, key: str, expected: str, value: str) -> None: ...


def test_the_threads_of_heartbeats_end_before_the_process() -> None:
    beats = Heartbeats(Store(), 0, 2, lambda rank: None)
    beats.start()
    assert all(thread.is_alive() for thread in beats.threads)
    beats.stop()
    assert not any(thread.is_alive() for thread in beats.threads)


def test_a_process_that_leaves_after_the_training_is_not_lost() -> None:
    """The first one may still write the last weights."""
    beats = Heartbeats(Store(), 0, 2, lambda rank: None)
    try:
        group = Group(0, 2, ("a", "b"), heartbeats=beats)
        beats.report = Report(1, 1, LOST_SECONDS + 1)
        group.begin()
        assert beats.silent(beats.lost_after) == 1
        group.end()
        assert beats.silent(beats.lost_after) is None
    finally:
        beats.stop()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[gloo] Connection closed by peer"), GroupError("", "rank 1 (host b) stopped: data")),
        (UsageError("train.lr", "is 0"), UsageError("train.lr", "is 0")),
    ],
)
def test_a_failure_at_any_time_names_the_process(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: Exception
) -> None:
    """Also while the model is built, which exchanges the shapes of weights."""
    beats = Heartbeats(Store(), 0, 2, lambda rank: None)
    group = Group(0, 2, ("a", "b"), diagnose=lambda: "rank 1 (host b) stopped: data", heartbeats=beats)
    monkeypatch.setattr(cli_group, "place_of_process", lambda: Place(0, 2, 0, "a", "a", 1))
    monkeypatch.setattr(cli_group, "join", lambda place, device, on_lost: group)
    with pytest.raises(type(expected)) as caught, cli_group.joined("cpu"):
        raise error
    assert str(caught.value) == str(expected) and not any(thread.is_alive() for thread in beats.threads)


# ---- the model of a step's time


def test_bytes_of_a_step() -> None:
    layout = Layout(outside=[[10, 4]], layers=[[[4, 4], [4]]] * 2, muon=[(2, [4, 4])])
    assert layout.num_bytes == 4 * (40 + 2 * 20)
    small = 8 * 2 * 3 / 4  # of a number
    assert ddp_step(layout._replace(muon=()), 4).sent_bytes(4) == 2 * 3 / 4 * 320 + 5 * small
    # two matrices among four processes: each sends a whole one, although two have none
    assert ddp_step(layout, 4).sent_bytes(4) == 2 * 3 / 4 * 320 + 5 * small + 3 / 4 * 4 * 4 * 16
    # weights of layers twice and once those outside, whose 10 rows are padded to 12; gradients by an all-reduce
    gathered, scattered = 2 * 160 + 192, 2 * (160 + 192)
    assert fsdp_step(layout._replace(muon=()), 4).sent_bytes(4) == 3 / 4 * (gathered + scattered) + 6 * small


def test_buckets_are_filled_in_the_order_of_the_backward_pass() -> None:
    million = [1 << 18]  # 1 MiB
    assert buckets([million] * 3) == [1 << 20, 2 << 20]
    assert buckets([[100], million, [10]]) == [40 + (1 << 20), 400]
    assert buckets([million] * 27) == [1 << 20, 25 << 20, 1 << 20]


def test_time_of_a_step() -> None:
    network = Network(latency=0.01, bytes_per_second=1e6)
    assert network.seconds(Exchange("all_reduce", 0), 4) == pytest.approx(12 * 0.01)
    few = [network.delay_seconds(Exchange("all_reduce", 8 * count, is_small=True), 4) for count in (1, 2, 3, 4, 5)]
    assert few == pytest.approx([0.04, 0.04, 0.08, 0.08, 0.12])  # as measured with gloo
    assert network.seconds(Exchange("all_gather", 10**6), 2) == pytest.approx(2 * 0.01 + 1.5 * 0.5)
    layout = Layout(outside=[], layers=[[[1000, 263]], [[1000, 263]]])  # two buckets of 1.052 MB each
    step, transfer, small = ddp_step(layout, 2), 1.052, 2 * 4 * 0.01 + 40e-6
    # the second bucket waits for the first one, or for the backward pass
    assert step.seconds(network, 2, 0.03) == pytest.approx(0.02 + 2 * transfer + 0.04 + small)
    assert step.seconds(network, 2, 30.0) == pytest.approx(30 + transfer + 0.04 + small)


# ---- emulated hosts


def packet(target: int, size: int = 1000) -> bytes:
    """An IPv4 packet to a host."""
    return bytes([0x45, *[0] * 18, target + 1]).ljust(size, b"x")


def test_the_emulated_network_delays_limits_and_cuts() -> None:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    emulator = Emulator([pair[0].fileno() for pair in pairs])
    settings = {"delay": 0.5, "bytes_per_second": 1000.0, "loss": 0.0, "cut": []}
    emulator.configure(settings)
    for _ in range(2):
        emulator.accept(0, packet(1), 10.0)
    received = pairs[1][1]
    received.setblocking(False)
    # a packet of 1000 bytes takes a second, and half a second more to arrive
    assert emulator.deliver(11.4) == pytest.approx(0.1)
    with pytest.raises(BlockingIOError):
        received.recv(2000)
    assert emulator.deliver(11.5) == pytest.approx(1.0) and len(received.recv(2000)) == 1000
    emulator.configure({**settings, "cut": [1]})
    emulator.accept(0, packet(1), 12.0)
    emulator.deliver(100.0)
    assert len(received.recv(2000)) == 1000  # the one that was on its way
    with pytest.raises(BlockingIOError):
        received.recv(2000)
    emulator.configure({**settings, "loss": 1.0})
    emulator.accept(0, packet(1), 200.0)
    assert not emulator.links[1].arriving and emulator.links[0].sent_bytes == 4000
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


requires_hosts = pytest.mark.skipif(missing_requirement() is not None, reason=str(missing_requirement()))


@pytest.mark.slow
@requires_hosts
@pytest.mark.parametrize("row", [Benchmark.cut_link, Benchmark.dead_host, Benchmark.killed_process])
def test_a_cut_link_and_a_dead_host_stop_the_run_and_it_resumes(tmp_path: Path, row: Any) -> None:
    with emulated_hosts(["alpha", "beta"], LINK) as network:
        outcome = row(Benchmark(tmp_path), network)
    assert outcome.is_met, outcome.text


@pytest.mark.slow
@requires_hosts
def test_emulated_hosts_have_names_and_a_network(tmp_path: Path) -> None:
    with emulated_hosts(["alpha", "beta"], LinkConfig(delay_ms=20, megabits=100)) as network:
        first, second = network.hosts
        code = "import socket,time; s=socket.create_server(('', 5000)); s.accept(); time.sleep(60)"
        server = first.start([sys.executable, "-c", code], {}, log=tmp_path / "alpha.log")
        code = (
            "import socket,time\ntime.sleep(2)\nstart=time.monotonic()\nsocket.create_connection(('alpha', 5000))\n"
            "print(socket.gethostname(), time.monotonic() - start)"
        )
        assert second.start([sys.executable, "-c", code], {}, log=tmp_path / "beta.log").wait(60) == 0
        name, seconds = (tmp_path / "beta.log").read_text().split()
        assert name == "beta" and 0.04 <= float(seconds) < 2 and network.sent_bytes()[0] > 0
        first.kill()
        assert first.pids() == [] and server.wait(10) == -signal.SIGKILL
