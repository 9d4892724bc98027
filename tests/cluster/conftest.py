"""A whole broker, for tests of its responses about the cluster and of what it writes to the metadata store.

Zone: real.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from tests.handnode import Node as HandNode

from ottla.cluster.topic_bytes import TopicForm
from ottla.cluster.topics import TopicSpec
from ottla.errors import ApiError
from ottla.requests import Context, Encoded, InPieces
from ottla.seams import Failure
from ottla.sim.machines.machine import Death
from ottla.sim.world import SECOND
from ottla.types import Endpoint
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.slices import Joined


class Asker(NamedTuple):
    """A connection."""

    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    host: str = "127.0.0.1"


class Place(NamedTuple):
    """An ordered response on it."""

    peer: Asker


class Node(HandNode):
    """One broker with an embedded metadata store."""

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        self.deltas = []
        super().__init__(properties)

    def boot(self) -> None:
        """Start. Raises the failure of a broker that cannot start."""
        self.start()
        self.broker.cluster.on_change = self._on_change(self.broker.cluster.on_change)
        self.settle()

    def _on_change(self, told):
        def both(delta):
            self.deltas.append(delta)
            told(delta)

        return both

    def endpoints(self) -> list[Endpoint]:
        return [Endpoint("PLAINTEXT", "here", 9092), Endpoint("INSIDE", "10.0.0.1", 9093)]

    @property
    def cluster(self):
        """The broker's view of the cluster."""
        return self.broker.cluster

    @property
    def topics(self):
        """The broker's requests to the controller."""
        return self.broker._control.topics

    @property
    def alterations(self):
        """The broker's writer of settings."""
        return self.broker._control._room.alterations

    @property
    def store(self):
        """The metadata store."""
        return self.broker._control._store

    def restart(self, death: Death = Death.KILL) -> None:
        """Kill the process and start again."""
        if self.machine.process is not None:
            self.machine.end_process(death)
        self.boot()

    def settle(self) -> None:
        """Run all queued effects and completions."""
        self.timeline.run_until(self.timeline.now_ns + 20 * SECOND)
        assert not self.machine.crashes, self.machine.crashes[0]

    def turn(self, action) -> None:
        """Run an action as an input of the broker, and its effects."""

        def whole() -> None:
            action()
            self.broker.end_turn()

        self.process.post_turn(0, "by hand", whole)
        self.settle()

    def wait(self, ask):
        """Call `ask(done)` and return what `done` receives; raises a Failure or ApiError."""
        box = []
        self.turn(lambda: ask(box.append))
        (outcome,) = box
        if isinstance(outcome, (Failure, ApiError)):
            raise outcome
        return outcome

    def get(self, path: str):
        """A node of the store."""
        return self.wait(lambda done: self.store.get_node(path, False, done))

    def submit(self, *ops):
        """Change the store as an operator would."""
        return self.wait(lambda done: self.store.submit_ops("by hand", ops, done))

    def ask(self, request, version: int, listener: str = "PLAINTEXT"):
        """A request over the wire: encoded, decoded, handled, answered, encoded, decoded."""
        api = next(api for api in API_TABLE.values() if isinstance(request, api.request))
        cold = self.broker._dispatch.cold[api.key]
        assert cold.declaration.min_version <= version <= cold.declaration.max_version
        received, _ = decode(api.request, version, memoryview(bytearray(encode_bytes(request, version))))
        box = []
        context = Context(api.key, version, 1, "test", Place(Asker(listener)), lambda _, response: box.append(response))

        def handle() -> None:
            try:
                response = cold.handler(context, received)
            except ApiError as error:
                response = error
            if response is not None:
                box.append(response)

        self.turn(handle)
        (response,) = box
        if isinstance(response, ApiError):
            return response
        if isinstance(response, InPieces):
            response = joined(api, version, response)
        content = b"".join(response.parts) if isinstance(response, Encoded) else encode_bytes(response, version)
        answer, end = decode(api.response, version, memoryview(bytearray(content)))
        assert end == len(content)
        return answer


def joined(api, version: int, response: InPieces) -> Encoded:
    """Join a response in pieces as the dispatch does."""
    whole = Joined(api.response, version, response.path)
    for piece in response.pieces:
        whole.add_response(piece)
    encoded = Encoded(whole.final_parts())
    if response.keep is not None:
        response.keep(encoded)
    return encoded


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def make_node() -> type[Node]:
    return Node


def make(node, name, partitions=1, configs=()):
    """Create a topic through the broker."""
    spec = TopicSpec(name, partitions, 1, configs=dict(configs))
    return node.wait(lambda done: node.topics.create_topic(spec, False, 1000, done))


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """The number of partitions in each call of the encoder."""
    counts: list[int] = []
    encode = TopicForm.encode_partitions

    def counted(self, partitions):
        counts.append(len(partitions))
        return encode(self, partitions)

    monkeypatch.setattr(TopicForm, "encode_partitions", counted)
    return counts
