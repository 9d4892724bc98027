"""A request with many elements: it is surveyed as a whole first, then handled in slices.

Zone: deterministic. A part is handled without the others, so facts that depend on all elements (their number, names
that occur twice) are found beforehand, in steps.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from ottla.broker.duplicate_names import DuplicateNames
from ottla.requests import Parts
from ottla.wire.slices import Elements, Path, count_elements, with_array

DECODE_US: Final = 2_000
"""Cost of decoding a slice, in microseconds."""
_NAMES_PER_US: Final = 3
"""Names that are hashed, or compared, per microsecond."""


class SomeElements:
    """A decoded request with an array to divide."""

    cost_us = 0
    """Cost of iterating over a slice."""

    def __init__(self, request: Any, path: Path, parts: Parts) -> None:
        self.request = request
        """The request; its array is empty if `slices` returns the elements."""
        self.path = path
        self.parts = parts
        self.weight = 0
        self.repeated: AbstractSet[int] = frozenset()

    def survey_elements(self) -> Iterator[int]:
        """Count elements and find repeated names, in steps; yields their costs in microseconds."""
        once, names = self.parts.once, self.parts.names
        repeats = DuplicateNames()
        for elements in self._read_elements():
            self.weight += self._weigh_elements(elements)
            yield self.cost_us
            if names is not None:
                for element in elements:
                    yield repeats.add_names(names(element)) // _NAMES_PER_US
            elif once is not None:
                yield repeats.add_names(map(once, elements)) // _NAMES_PER_US
        steps = repeats.find_repeated()
        while True:
            try:
                yield next(steps) // _NAMES_PER_US
            except StopIteration as stop:
                self.repeated = stop.value
                return

    def _read_elements(self) -> Iterator[list[Any]]:
        yield getattr(self.request, self.path[0])

    def _weigh_elements(self, elements: list[Any]) -> int:
        rest = self.path[1:]
        return len(elements) + (sum(count_elements(element, rest) for element in elements) if rest else 0)

    def request_slices(self) -> Iterator[Any]:
        """The request with some of its elements at a time, without repetitions if `Parts.once` is set.

        None: a step that has not completed an element.
        """
        seen: set[int] = set()
        for elements in self._read_elements():
            kept = self._first_ones(elements, seen)
            yield with_array(self.request, self.path[0], kept) if kept else None

    def _first_ones(self, elements: list[Any], seen: set[int]) -> list[Any]:
        once = self.parts.once
        if once is None or not self.repeated:
            return elements
        kept = []
        for element in elements:
            value = hash(once(element))
            if value not in seen:
                kept.append(element)
                # Names that occur once are not kept: a request with a million different names needs no set of a
                # million.
                if value in self.repeated:
                    seen.add(value)
        return kept

    def read_whole_request(self) -> Generator[int, None, Any]:
        """Return the whole request, if it is small enough. In steps, as arrays beside the path are not surveyed."""
        request = self.request
        elements: list[Any] = []
        for some in self.request_slices():
            yield self.cost_us
            elements += getattr(some, self.path[0]) if some else ()
        return with_array(request, self.path[0], elements) if elements else request


class ManyElements(SomeElements):
    """A request whose elements are decoded slice by slice, each time they are iterated over."""

    cost_us = DECODE_US

    def __init__(self, elements: Elements, path: Path, parts: Parts) -> None:
        super().__init__(None, path, parts)
        self._elements = elements

    def _read_elements(self) -> Iterator[list[Any]]:
        request = yield from self._elements.iterate_slices()
        if self.request is None:
            self.request = request
