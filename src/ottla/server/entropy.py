"""Random numbers and bytes from the operating system.

Zone: real. Implements `ottla.seams.Entropy`; only the simulator distinguishes the streams.
"""

from __future__ import annotations

import os


class RealEntropy:
    """Unpredictable bytes and integers; every stream is the same source."""

    __slots__ = ()

    def random_below(self, stream: str, n: int) -> int:  # noqa: ARG002 - named for the simulator
        """A uniform integer in [0, n)."""
        assert n > 0, "below: n is not positive"
        # 64 bits more than needed keep the bias of the remainder under 2**-64.
        return int.from_bytes(os.urandom((n.bit_length() + 7) // 8 + 8), "big") % n

    def random_bytes(self, stream: str, n: int) -> bytes:  # noqa: ARG002 - named for the simulator
        """`n` random bytes."""
        return os.urandom(n)
