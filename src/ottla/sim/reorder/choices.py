"""One path through the tree of schedules, and the next one.

Zone: pure. A schedule is the list of its choices. The code that runs it calls `choose_option` at every fork, and gets
the first option where the list has ended. So the whole tree can be walked without being stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Path = tuple[int, ...]


class WrongPath(Exception):
    """A path that does not lead through this tree."""


class Choices:
    """The choices of one schedule: first the given ones, then the first option of each fork."""

    __slots__ = ("_given", "taken", "widths")

    def __init__(self, given: Sequence[int] = ()) -> None:
        self._given = given
        self.taken: list[int] = []
        self.widths: list[int] = []
        """The number of options of each fork."""

    def choose_option(self, width: int) -> int:
        """One of `width` options, at least one. Raises WrongPath."""
        if width == 1:
            return 0
        at = len(self.taken)
        choice = self._given[at] if at < len(self._given) else 0
        if not 0 <= choice < width:
            raise WrongPath(f"option {choice} of {width} at fork {at}")
        self.taken.append(choice)
        self.widths.append(width)
        return choice

    @property
    def is_new(self) -> bool:
        """Whether the next fork comes after the given choices."""
        return len(self.taken) >= len(self._given)

    @property
    def path(self) -> Path:
        """The choices so far."""
        return tuple(self.taken)

    def next_path(self, root: int) -> Path | None:
        """The next path with the same first `root` choices; None: this was the last one."""
        for at in range(len(self.taken) - 1, root - 1, -1):
            if self.taken[at] + 1 < self.widths[at]:
                return (*self.taken[:at], self.taken[at] + 1)
        return None

    def list_branches(self, root: int) -> Iterator[Path]:
        """Roots of all subtrees beside this path, below its first `root` choices: the rest of the tree."""
        for at in range(root, len(self.taken)):
            for option in range(self.taken[at] + 1, self.widths[at]):
                yield (*self.taken[:at], option)
