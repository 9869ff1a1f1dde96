"""A network between emulated hosts: forwards IP packets between TUN devices with delay, bandwidth, loss and cut links.

`_hosts.py` starts this file as a process, with one device per host. Commands are lines of JSON on standard input, and each is
answered by the bytes that every host has sent so far. It needs nothing from the kernel but /dev/net/tun.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

MAX_PACKETS = 64  # that are read from a device at a time
QUEUE_BYTES = 16_000_000  # a longer queue drops packets; the windows of TCP are smaller


class Link:
    """The network card of a host, full duplex."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.sent_bytes = 0
        self.send_free = self.receive_free = 0.0  # when it has sent and received everything so far
        self.arriving: deque[tuple[float, bytes]] = deque()  # packets for this host, with the time of their arrival


class Emulator:
    """Packets go from any host to the host that their address names."""

    def __init__(self, devices: list[int]) -> None:
        self.links = [Link(device) for device in devices]
        self.random = random.Random(1)
        self.delay, self.bytes_per_second, self.loss = 0.0, 1e9, 0.0
        self.cut: set[int] = set()  # hosts without connection

    def configure(self, values: dict[str, Any]) -> None:
        self.delay, self.loss = values["delay"], values["loss"]
        self.bytes_per_second, self.cut = values["bytes_per_second"], set(values["cut"])

    def accept(self, source: int, packet: bytes, now: float) -> None:
        """Send a packet of a host on its way."""
        target = packet[19] - 1 if packet[0] >> 4 == 4 else -1  # the last byte of the IPv4 address is the number of the host
        if not 0 <= target < len(self.links):
            return
        sender, receiver = self.links[source], self.links[target]
        duration = len(packet) / self.bytes_per_second
        start = max(now, sender.send_free)
        if (start - now) * self.bytes_per_second > QUEUE_BYTES:
            return
        sender.send_free, sender.sent_bytes = start + duration, sender.sent_bytes + len(packet)
        if source in self.cut or target in self.cut or self.random.random() < self.loss:
            return
        receiver.receive_free = max(receiver.receive_free, start + self.delay) + duration
        receiver.arriving.append((receiver.receive_free, packet))

    def deliver(self, now: float) -> float:
        """Hand over the packets that have arrived. Returns the seconds until the next one arrives."""
        wait = 1.0
        for link in self.links:
            while link.arriving and link.arriving[0][0] <= now:
                with suppress(BlockingIOError):  # the host does not read: its packet is lost
                    os.write(link.device, link.arriving[0][1])
                link.arriving.popleft()
            if link.arriving:
                wait = min(wait, link.arriving[0][0] - now)
        return wait

    def run(self) -> None:
        """Forward packets until standard input closes."""
        sources = {link.device: number for number, link in enumerate(self.links)}
        wait = 1.0
        while True:
            ready, _, _ = select.select([0, *sources], [], [], max(0.0, wait))
            now = time.monotonic()
            for device in ready:
                if device == 0:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    if (values := json.loads(line)) is not None:
                        self.configure(values)
                    print(json.dumps([link.sent_bytes for link in self.links]), flush=True)
                    continue
                self._read(device, sources[device], now)
            wait = self.deliver(time.monotonic())

    def _read(self, device: int, source: int, now: float) -> None:
        for _ in range(MAX_PACKETS):
            try:
                self.accept(source, os.read(device, 65536), now)
            except BlockingIOError:
                return


if __name__ == "__main__":
    Emulator([int(word) for word in sys.argv[1:]]).run()
