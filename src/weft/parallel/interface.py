"""The network interface that leads to the other hosts.

By default, gloo listens on the address of the host's own name, which is a loopback address on many systems (127.0.1.1 in
/etc/hosts), or on none that it can resolve. Other hosts cannot reach it there.
"""

from __future__ import annotations

import socket
import struct
import sys

SIOCGIFADDR = 0x8915  # of Linux: the IPv4 address of an interface


def address_towards(host: str, port: int) -> str | None:
    """The address of this machine from which packets to a host are sent; None if there is no route. Nothing is sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_with(address: str) -> str | None:
    """The network interface that has an IPv4 address; None if it is not found."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def is_loopback(address: str) -> bool:
    """Whether no other host can reach this address."""
    return address.startswith("127.") or address == "::1"
