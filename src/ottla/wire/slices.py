"""Divides an array of a large request into slices, and joins the arrays of the responses to one response.

Zone: pure. `Elements` decodes an array slice by slice, `split_struct` divides a slice along a path of nested arrays,
and `Joined` keeps encoded bytes only, so that only one slice exists as objects. The dispatch decides when to handle a
part.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from copy import copy
from functools import cache
from typing import Any, Final, NamedTuple

from ottla.seams import Part
from ottla.wire.codec import compile_portion, decode_sliced
from ottla.wire.primitives import uvarint
from ottla.wire.schema import Encoder, Message, StructType, struct_class

Path = tuple[str, ...]
"""Names of arrays, each inside an element of the one before: ("topics", "partitions")."""


class Elements:
    """An array of a large request, decoded slice by slice from the frame each time it is iterated over.

    It replaces the list for handlers that only iterate over it. The frame must not change.
    """

    __slots__ = ("_cls", "_path", "_pos", "_version", "_view")

    def __init__(self, cls: type[Message], version: int, view: memoryview, pos: int, path: Path) -> None:
        """The array is the first of the path. A large element of it is divided into pieces along the path."""
        self._cls = cls
        self._version = version
        self._view = view
        self._pos = pos
        self._path = _cuttable_path(cls, version, path)

    def __iter__(self) -> Iterator[Any]:
        """All elements, or pieces of them. Raises MalformedMessage if the frame was not checked before."""
        for elements in self.iterate_slices():
            yield from elements

    def iterate_slices(self) -> Generator[list[Any], None, Any]:
        """Yield the elements, up to SLICE structs or texts at a time. Returns the request without them, or with null.

        A slice may be empty, within a large element that cannot be divided. Raises MalformedMessage.
        """
        decoding = decode_sliced(self._cls, self._version, self._view, self._pos)
        array, *rest = self._path
        while True:
            try:
                request, unfinished = next(decoding)
            except StopIteration as stop:
                if elements := _take_items(getattr(stop.value, array), rest, 0):
                    yield elements
                return stop.value
            yield _take_items(getattr(request, array, None), rest, unfinished)


def _cuttable_path(cls: StructType, version: int, path: Path) -> Path:
    """The path up to the first array that is not the last field of its element: later fields would be missing."""
    for depth, name in enumerate(path[:-1], 1):
        cls = struct_class(cls, next(field for field in cls.FIELDS if field.name == name))
        fields = [field for field in cls.FIELDS if field.exists_in(version)]
        if fields[-1].name != path[depth]:
            return path[:depth]
    return path


def _take_items(items: list[Any] | None, rest: Sequence[str], unfinished: int) -> list[Any]:
    """Take the finished elements out of an array, and of an unfinished last one those along the path."""
    if not items:
        return []
    if not unfinished:
        taken = items[:]
        items.clear()
        return taken
    # The decoder still appends to the last element, so it stays in the array; only its finished elements are taken.
    last = items.pop()
    taken = items[:]
    items[:] = [last]
    if rest and (some := _take_items(getattr(last, rest[0], None), rest[1:], unfinished - 1)):
        taken.append(with_array(last, rest[0], some))
    return taken


def path_in(cls: type[Message], version: int, paths: Sequence[Path]) -> Path | None:
    """The first of the paths whose outermost array that version has."""
    for path in paths:
        field = next(field for field in cls.FIELDS if field.name == path[0])
        if field.exists_in(version):
            return path
    return None


def count_elements(struct: Any, path: Path) -> int:
    """The number of elements along a path, on all its levels."""
    items = getattr(struct, path[0])
    if not items:
        return 0
    rest = path[1:]
    return len(items) if not rest else len(items) + sum(count_elements(item, rest) for item in items)


def split_struct(struct: Any, path: Path, size: int) -> Iterator[Any]:
    """Copies of a struct, each with at most `size` elements along the path; at least one. Empties the struct's arrays.

    An element that is too large by itself is divided on the next level. A null array stays null.
    """
    items, name, rest = getattr(struct, path[0]), path[0], path[1:]
    if not items:
        yield struct
        return
    items.reverse()  # `pop` below frees each element as soon as it is handled
    batch: list[Any] = []
    room = size
    while items:
        item = items.pop()
        weight = 1 + count_elements(item, rest) if rest else 1
        for piece in (item,) if weight <= size or not rest else split_struct(item, rest, size):
            taken = weight if weight <= size else 1 + count_elements(piece, rest)
            if batch and taken > room:
                yield with_array(struct, name, batch)
                batch, room = [], size
            batch.append(piece)
            room -= taken
    if batch:
        yield with_array(struct, name, batch)


def with_array(struct: Any, name: str, items: list[Any]) -> Any:
    """A copy of a struct with these elements in the array of that name."""
    part = copy(struct)
    setattr(part, name, items)
    return part


# -- joining ---------------------------------------------------------------------------------------------------------


class _Level(NamedTuple):
    """The encoders of one struct on the path: of the fields before its array and after it; for the last one, of all."""

    head: Encoder
    tail: Encoder
    array: str
    is_flexible: bool


@cache
def _path_levels(owner: type[Message], version: int, path: Path) -> tuple[tuple[_Level, ...], Encoder]:
    flexible = version in owner.FLEXIBLE
    cls: StructType = owner
    levels = []
    for name in path:
        head = compile_portion(owner, version, cls, name, "head")
        tail = compile_portion(owner, version, cls, name, "tail")
        levels.append(_Level(head, tail, name, flexible))
        cls = struct_class(cls, next(field for field in cls.FIELDS if field.name == name))
    return tuple(levels), compile_portion(owner, version, cls, "", "function")


_NO_PIECES: Final[bytes] = b""
_SMALL: Final = 4096
"""Pieces below this number of bytes are joined: thousands of small ones have more overhead than content."""


class Joined:
    """One response from many: joins the arrays along a path, and the two halves of a divided element."""

    __slots__ = ("_error", "_leaf", "_levels", "_open", "_pieces", "size")

    def __init__(self, owner: type[Message], version: int, path: Path) -> None:
        self._levels, self._leaf = _path_levels(owner, version, path)
        self._open: list[tuple[bytes, bytes, list[int]]] = []
        """Per unfinished level: its head, its tail, and (index of its count's piece, count)."""
        self._pieces: list[bytes] = []
        self._error = False
        self.size = 0
        """Bytes so far."""

    def add_response(self, response: Message) -> None:
        """Add the arrays of one more response. The head is that of the first response, or of the first error.

        Elements of the last array may be bytes, encoded already.
        """
        mark = len(self._pieces)
        head, tail = self._struct_ends(0, response)
        failed = bool(getattr(response, "error_code", 0))
        if not self._open:
            self._open.append((head, tail, self._begin_array(head)))
            self._error = failed
        elif failed and not self._error:  # an error of the whole request must not be lost among good parts
            self._error = True
            self._pieces[0] = head
            self._open[0] = (head, tail, self._open[0][2])
        self._take_items(0, getattr(response, self._levels[0].array))
        # Also join with the piece before, if that is small; the first two pieces are the head and the outermost count.
        if mark > 2 and len(self._pieces[mark - 1]) < _SMALL and not self._is_counter(mark - 1):
            mark -= 1
        self._compact_pieces(max(mark, 2))

    def _is_counter(self, where: int) -> bool:
        return any(counter[0] == where for _, _, counter in self._open)

    def _compact_pieces(self, mark: int) -> None:
        """Join the pieces from `mark` on, except counts that are not final yet."""
        new = self._pieces[mark:]
        del self._pieces[mark:]
        begin = 0
        for entry in self._open:
            counter = entry[2]
            if counter[0] >= mark:
                end = counter[0] - mark
                self._pieces += [b"".join(new[begin:end]), _NO_PIECES]
                counter[0] = len(self._pieces) - 1
                begin = end + 1
        if begin < len(new):
            self._pieces.append(b"".join(new[begin:]))

    def final_parts(self) -> list[Part]:
        """The bytes of the response, in pieces of about a slice; nothing can be added after that."""
        self._close_array(0)
        return list(self._pieces)

    def _take_items(self, depth: int, items: Sequence[Any] | None) -> None:
        counter = self._open[depth][2]
        if items is None:
            return
        if depth + 1 == len(self._levels):
            pieces: list[bytes] = []
            for item in items:
                if type(item) is bytes:
                    pieces.append(item)
                else:
                    self._leaf(item, [], pieces, pieces.append)
            counter[1] += len(items)
            self._put_piece(b"".join(pieces))
            return
        for number, item in enumerate(items):
            head, tail = self._struct_ends(depth + 1, item)
            # The first element of a response continues the last one of the response before if all its other fields
            # are equal: then a slice boundary has divided it. Equal elements within one response stay two.
            if number or len(self._open) == depth + 1 or self._open[depth + 1][:2] != (head, tail):
                self._close_array(depth + 1)
                self._put_piece(head)
                self._open.append((head, tail, self._begin_array(None)))
                counter[1] += 1
            self._take_items(depth + 1, getattr(item, self._levels[depth + 1].array))

    def _struct_ends(self, depth: int, struct: Any) -> tuple[bytes, bytes]:
        level = self._levels[depth]
        head: list[bytes] = []
        level.head(struct, [], head, head.append)
        tail: list[bytes] = []
        level.tail(struct, [], tail, tail.append)
        return b"".join(head), b"".join(tail)

    def _begin_array(self, head: bytes | None) -> list[int]:
        """Reserve a piece for a count: [its index, the count so far]."""
        if head is not None:
            self._put_piece(head, always=True)
        self._put_piece(_NO_PIECES, always=True)
        return [len(self._pieces) - 1, 0]

    def _close_array(self, depth: int) -> None:
        while len(self._open) > depth:
            _, tail, (where, count) = self._open.pop()
            is_flexible = self._levels[0].is_flexible
            self._pieces[where] = uvarint(count + 1) if is_flexible else count.to_bytes(4, "big")
            self._put_piece(tail)

    def _put_piece(self, piece: bytes, *, always: bool = False) -> None:
        if piece or always:
            self._pieces.append(piece)
            self.size += len(piece)
