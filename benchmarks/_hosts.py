"""Several hosts on one machine: network namespaces with host names of their own, connected by the emulator in
`_link_emulator.py`. Needs root and /dev/net/tun.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

EMULATOR = Path(__file__).with_name("_link_emulator.py")
NETWORK = "10.99.7"  # inside the namespaces only
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# sends at full speed after a pause, as clusters are configured: training computes between exchanges
SETTINGS = {"net/ipv4/tcp_slow_start_after_idle": "0"}


class LinkConfig(NamedTuple):
    """The network between the hosts."""

    delay_ms: float = 0.1  # in one direction
    megabits: float = 1000.0  # per second, of each host, in each direction
    loss: float = 0.0  # fraction of packets

    def __str__(self) -> str:
        loss = f", {self.loss:.1%} loss" if self.loss else ""
        return f"{self.megabits:g} Mbit/s, {self.delay_ms:g} ms{loss}"


def missing_requirement() -> str | None:
    """Why hosts cannot be emulated here; None if they can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "needs root for network namespaces"
    if not Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    for tool in ("ip", "nsenter", "unshare"):
        if shutil.which(tool) is None:
            return f"needs the command {tool}"
    completed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return None if completed.returncode == 0 else f"no network namespaces: {completed.stderr.strip()}"


class Host:
    """A network namespace with a host name. Everything that is started in it can be killed at once, like a machine."""

    def __init__(self, name: str, number: int, device: str, names: Path) -> None:
        self.name, self.number, self.device = name, number, device
        self.names = names  # the file /etc/hosts
        self.namespace, self.address = f"weft-{os.getpid()}-{name}", f"{NETWORK}.{number + 1}"

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], *, log: Path, setup: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a process on the host; its output goes to a file.

        Args:
            words: The command.
            environment: Added to the environment.
            log: The file.
            setup: Shell commands that run before it, such as mounts that no other host sees.
        """
        script = " && ".join([f"hostname {self.name}", f"mount --bind {self.names} /etc/hosts", *setup, 'exec "$@"'])
        space = f"--net=/run/netns/{self.namespace}"
        with log.open("ab") as output:
            return subprocess.Popen(
                ["nsenter", space, "unshare", "--uts", "--mount", "sh", "-c", script, "sh", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """The processes that run on the host."""
        completed = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True)
        return [int(word) for word in completed.stdout.split()]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the host."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """The host loses its power: SIGKILL until nothing runs."""
        while self.pids():
            self.signal(signal.SIGKILL)
            time.sleep(0.02)


class Network:
    """The hosts and the process that forwards packets between them."""

    def __init__(self, hosts: Sequence[Host], emulator: subprocess.Popen[str], link: LinkConfig) -> None:
        self.hosts, self.emulator, self.link = hosts, emulator, link
        self.set_link(link)

    def set_link(self, link: LinkConfig, *, cut: Sequence[Host] = ()) -> None:
        """Change the network; hosts in `cut` have no connection to any other one."""
        self.link = link
        self._ask(
            {
                "delay": link.delay_ms / 1e3,
                "bytes_per_second": link.megabits * 1e6 / 8,
                "loss": link.loss,
                "cut": [host.number for host in cut],
            }
        )

    def cut(self, host: Host) -> None:
        self.set_link(self.link, cut=[host])

    def sent_bytes(self) -> list[int]:
        """The bytes of the IP packets that each host has sent so far."""
        return self._ask(None)

    def _ask(self, values: dict[str, Any] | None) -> list[int]:
        if self.emulator.stdin is None or self.emulator.stdout is None:
            raise RuntimeError("no pipes to the emulator")
        self.emulator.stdin.write(json.dumps(values) + "\n")
        self.emulator.stdin.flush()
        answer: list[int] = json.loads(self.emulator.stdout.readline())
        return answer


@contextmanager
def emulated_hosts(names: Sequence[str], link: LinkConfig, *, mtu: int = 1500) -> Iterator[Network]:
    """Context manager with connected hosts; all their processes are killed at the end."""
    with ExitStack() as stack:
        hosts, devices = [], []
        host_names = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "hosts"
        host_names.write_text("127.0.0.1 localhost\n" + "".join(f"{NETWORK}.{n + 1} {name}\n" for n, name in enumerate(names)))
        for number, name in enumerate(names):
            host = Host(name, number, f"weft{os.getpid() % 10**6}-{number}", host_names)
            _ip("netns", "add", host.namespace)
            stack.callback(_ip, "netns", "delete", host.namespace)
            stack.callback(host.kill)
            devices.append(_open_tun(host))
            stack.callback(os.close, devices[-1])
            _configure(host, mtu)
            hosts.append(host)
        emulator = subprocess.Popen(
            [sys.executable, str(EMULATOR), *map(str, devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=devices,
            text=True,
            preexec_fn=lambda: os.nice(-15),  # a network is never short of processors
        )
        stack.enter_context(emulator)  # closes its standard input: it ends
        yield Network(hosts, emulator, link)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _open_tun(host: Host) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", host.device.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _configure(host: Host, mtu: int) -> None:
    """Move the device of a host into its namespace, with an address."""
    _ip("link", "set", host.device, "netns", host.namespace)
    commands = [
        ["ip", "link", "set", "lo", "up"],
        ["ip", "address", "add", f"{host.address}/24", "dev", host.device],
        ["ip", "link", "set", host.device, "mtu", str(mtu), "txqueuelen", "10000", "up"],
        *(["sh", "-c", f"echo {value} > /proc/sys/{name}"] for name, value in SETTINGS.items()),
    ]
    for command in commands:
        subprocess.run(["nsenter", f"--net=/run/netns/{host.namespace}", *command], check=True)
