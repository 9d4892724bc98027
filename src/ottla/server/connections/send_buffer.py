"""The unsent answers of a connection, when they are more than one small answer.

Zone: real. Large regions are sent by sendfile, without reading their bytes; small parts are gathered in a reused buffer
and sent with one system call. A region whose file has changed meanwhile, or cannot be read, is never sent:
`StaleRegion` closes the connection.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

from ottla.seams import Failure, Part, Region
from ottla.server.disks.file import RealFile

LARGE: Final = 32 * 1024
"""Regions of at least this size are sent by sendfile, and bytes of at least this size without copying them together."""
GATHERED: Final = 4 * LARGE
"""Bytes of small parts sent with one system call."""
ROUND: Final = 4 * 1024 * 1024
"""Bytes sent to one connection before the others get their turn."""
MANY: Final = 8 * 1024
"""Parts sent to one connection before the others get their turn: reading a small region costs as much as sending 1
KiB."""
PART: Final = 128
"""Bytes that Python needs for a part besides its content; the content of a pinned region is not in memory."""

_MORE: Final[int] = getattr(socket, "MSG_MORE", 0)


class StaleRegion(Exception):
    """The bytes of a region cannot be read (truncated, removed, or the device fails): the answer cannot be sent."""


class ScratchBuffer:
    """The buffer in which small parts are gathered; one for all connections of a loop."""

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = memoryview(bytearray(GATHERED))


class SendBuffer:
    """Parts in order, sent as far as the socket takes them."""

    __slots__ = ("_counted", "_parts", "_read", "_scratch", "begun", "memory")

    def __init__(self, scratch: ScratchBuffer) -> None:
        self._scratch = scratch
        self._parts: deque[Part] = deque()
        self.begun = False
        """Whether the first part is the rest of a region that sendfile began: it continues by sendfile, however small
        the rest is."""
        self.memory = 0
        """Bytes in memory; a region counts PART."""
        self._counted = 0
        self._read = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add_parts(self, *parts: Part) -> None:
        """Queue parts. The caller has pinned the regions."""
        for part in parts:
            if type(part) is Region:
                if part.size:
                    self._parts.append(part)
                    self.memory += PART
                else:
                    _unpin_region(part)
            elif part:
                self._parts.append(part)
                self.memory += PART + len(part)

    def take_change(self) -> int:
        """The change of `memory` since the last call, in bytes."""
        before, self._counted = self._counted, self.memory
        return self._counted - before

    def take_progress(self) -> bool:
        """Whether the peer has read LARGE bytes since the last call that returned True."""
        if self._read < LARGE:
            return False
        self._read = 0
        return True

    def send_parts(self, sock: socket.socket) -> bool:
        """Send; True when nothing is left. Raises BlockingIOError when the socket is full, OSError, StaleRegion."""
        parts = self._parts
        sent, most = 0, len(self._parts) - MANY
        while parts:
            if sent >= ROUND or len(parts) <= most:
                return False
            head = parts[0]
            if isinstance(head, Region):
                whole = head.size >= LARGE or self.begun
                count = self._send_file(sock, head) if whole else self._send_gathered(sock)
            else:
                count = self._send_bytes(sock, head) if len(head) >= LARGE else self._send_gathered(sock)
            sent += count
            self._read += count
        return True

    def unpin_all(self) -> None:
        """Unpin the files: the connection is closed."""
        for part in self._parts:
            if isinstance(part, Region):
                _unpin_region(part)
        self._parts.clear()
        self.memory = 0

    def _send_file(self, sock: socket.socket, region: Region) -> int:
        fd = current_descriptor(region)
        sent = os.sendfile(sock.fileno(), fd, region.pos, region.size)
        if sent == 0:
            raise StaleRegion("the file ended before the region")
        self._count_sent(region, sent)
        return sent

    def _count_sent(self, region: Region, sent: int) -> None:
        """Remove the first bytes of the first part, which is this region."""
        self.begun = sent < region.size
        if not self.begun:
            self._parts.popleft()
            self.memory -= PART
            _unpin_region(region)
        else:
            self._parts[0] = Region(region.file, region.pos + sent, region.size - sent, region.generation)

    def _send_bytes(self, sock: socket.socket, part: bytes | bytearray | memoryview) -> int:
        sent = sock.send(part, _MORE if len(self._parts) > 1 else 0)
        self.memory -= sent
        if sent == len(part):
            self._parts.popleft()
            self.memory -= PART
        else:
            rest = memoryview(part)[sent:]
            # A view keeps the whole part in memory: copy the rest once it is small compared with the part.
            self._parts[0] = rest if len(rest) * 4 > len(part) else bytes(rest)
        return sent

    def _send_gathered(self, sock: socket.socket) -> int:
        """Copy the small parts at the head together and send them; the rest that the socket does not take becomes one
        part."""
        filled = self._gather_parts()
        view = self._scratch.view
        try:
            sent = sock.send(view[:filled], _MORE if self._parts else 0)
        except BlockingIOError:
            sent = 0
        if sent < filled:
            self._parts.appendleft(bytes(view[sent:filled]))
            self.memory += PART + filled - sent
            if sent == 0:
                raise BlockingIOError
        return sent

    def _gather_parts(self) -> int:
        parts = self._parts
        view = self._scratch.view
        filled = memory = 0
        try:
            while parts:
                part = parts[0]
                size = part.size if isinstance(part, Region) else len(part)
                end = filled + size
                if size >= LARGE or end > GATHERED:
                    break
                if isinstance(part, Region):
                    _copy_pinned(part, view[filled:end])
                else:
                    view[filled:end] = part
                    memory += size
                memory += PART
                filled = end
                parts.popleft()
        finally:
            self.memory -= memory
        return filled


def send_at_once(sock: socket.socket, head: bytes, region: Region, fd: int) -> int:
    """Send bytes and then a large region, as far as the socket takes them; returns the number of bytes sent.

    `fd`: the descriptor of the region's pinned file. Raises OSError, StaleRegion.
    """
    if region.file.generation != region.generation:
        raise StaleRegion("the file was truncated")
    sent = 0
    try:
        # The flag keeps the kernel from sending the head in a packet of its own before the region follows.
        sent = sock.send(head, _MORE)
        if sent == len(head):
            sent += os.sendfile(sock.fileno(), fd, region.pos, region.size)
            if sent == len(head):
                raise StaleRegion("the file ended before the region")
    except (BlockingIOError, InterruptedError):
        pass
    return sent


def read_small(parts: Sequence[Part], begin: int) -> tuple[bytes, int]:
    """Join the parts from `begin` on to at most `GATHERED` bytes, reading their regions; stops before a part that is
    large or does not fit. Returns the bytes and the index of the part after them. Raises StaleRegion.

    Within one turn the files need not be pinned. Hot path: one pass of the loop per part.
    """
    pieces: list[bytes] = []
    left, at = GATHERED, begin
    try:
        for part in parts[begin:] if begin else parts:
            if type(part) is Region:
                file, pos, size, generation = part
                if size >= LARGE or size > left:
                    break
                if file.generation != generation:
                    raise StaleRegion("the file was truncated")
                piece = os.pread(file.fileno(), size, pos)  # type: ignore[attr-defined]  # a RealFile's
                if len(piece) != size:
                    raise StaleRegion("the file ended before the region")
                pieces.append(piece)
            else:
                size = len(part)
                if size > left:
                    break
                pieces.append(part)  # type: ignore[arg-type]  # any buffer can be joined
            left -= size
            at += 1
    except OSError as error:  # the partition's own reads will fail as well, and take the directory offline
        raise StaleRegion(f"the file cannot be read: {error.strerror}") from None
    except Failure as failure:
        raise StaleRegion(failure.message) from None
    return b"".join(pieces), at


def memory_of(parts: Sequence[Part]) -> int:
    """Bytes of an answer that are in memory."""
    return sum(PART if isinstance(part, Region) else PART + len(part) for part in parts)


def pin_parts(parts: Sequence[Part]) -> None:
    """Keep the files of regions open until they are sent. Raises StaleRegion when a file was closed; then none is
    pinned."""
    pinned: list[RealFile] = []
    try:
        for part in parts:
            if isinstance(part, Region):
                file = part.file
                assert isinstance(file, RealFile), "a region of another shell"
                file.pin_descriptor()
                pinned.append(file)
    except Failure as failure:
        for file in pinned:
            file.unpin_descriptor()
        raise StaleRegion(failure.message) from None


def unpin_part(part: Part) -> None:
    """Undo `pin` for a part that will not be sent."""
    if isinstance(part, Region):
        _unpin_region(part)


def _unpin_region(region: Region) -> None:
    assert isinstance(region.file, RealFile), "a region of another shell"
    region.file.unpin_descriptor()


def current_descriptor(region: Region) -> int:
    """The descriptor of the region's file. Raises StaleRegion if the file has changed since."""
    file = region.file
    assert isinstance(file, RealFile), "a region of another shell"
    if file.generation != region.generation:
        raise StaleRegion("the file was truncated")
    return file.fileno()


def _copy_pinned(region: Region, into: memoryview) -> None:
    """Read a pinned region and unpin it. Raises StaleRegion, and then leaves it pinned."""
    file = region.file
    assert isinstance(file, RealFile), "a region of another shell"
    if file.generation != region.generation:
        raise StaleRegion("the file was truncated")
    try:
        count = file.read_pinned(region.pos, into)
    except OSError as error:  # the partition's own reads will fail as well, and take the directory offline
        raise StaleRegion(f"the file cannot be read: {error.strerror}") from None
    if count != region.size:
        raise StaleRegion("the file ended before the region")
