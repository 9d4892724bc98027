"""Ports for servers of tests.

Zone: real.
"""

from __future__ import annotations

import atexit
import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"
_FIRST, _END = 12_000, 32_000
"""Linux gives higher ports to outgoing connections: one of them could have the port of a server that restarts."""
_reserved: list[socket.socket] = []


@atexit.register
def _release_all() -> None:
    for reservation in _reserved:
        reservation.close()


def free_port() -> int:
    """A TCP port without a listener, which no other call gets while this process runs.

    A UDP socket at the same port shows other processes that it is reserved.
    """
    while True:
        port = random.SystemRandom().randrange(_FIRST, _END)
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reservation.bind((HOST, port))
            with socket.socket() as probe:
                probe.bind((HOST, port))
        except OSError:
            reservation.close()
            continue
        _reserved.append(reservation)
        return port
