"""Stops the writers of the soak's stream while its reader, or a replica, is far behind: retention must not overtake it.

Zone: real. On a busy machine a reader may wait for longer than retention keeps records. Without this the run would
fail for a record that nothing but retention has deleted; a replica would copy for ever what retention deletes before it
has it all.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, Protocol

LOOK_S: Final = 0.2


class Paced(Protocol):
    """A client process with counts."""

    def counts(self) -> list[int]: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Pacing:
    """Compares what is acknowledged with what is read, in a thread of its own."""

    def __init__(self, writers: Sequence[Paced], reader: Paced, kept: int) -> None:
        """kept: records that retention keeps."""
        self._writers = writers
        self._reader = reader
        self._kept = kept
        self._paused = False
        self._held = False
        self.pauses = 0
        """How often the writers were stopped."""
        self.holds = 0
        """How often a replica was the reason."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hold(self) -> None:
        """Stop the writers until `release`, for a replica that does not catch up with them."""
        if not self._held:
            self._held = True
            self.holds += 1

    def release(self) -> None:
        """All replicas are in sync."""
        self._held = False

    def stop(self) -> None:
        """Let the writers continue without a bound."""
        self._ended.set()
        self._thread.join()
        self._set_paused(paused=False)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Stop the writers if they are held, or a third of the records that are kept is unread; continue at a sixth.

        Counts are printed a fifth of a second late, and writers have thousands of records in flight.
        """
        written = sum((writer.counts() or [0, 0])[1] for writer in self._writers)
        behind = written - sum(self._reader.counts())
        if self._held or behind > self._kept // 3:
            self._set_paused(paused=True)
        elif behind < self._kept // 6:
            self._set_paused(paused=False)

    def _set_paused(self, *, paused: bool) -> None:
        if paused == self._paused:
            return
        self._paused = paused
        self.pauses += paused
        for writer in self._writers:
            if paused:
                writer.pause()
            else:
                writer.resume()
