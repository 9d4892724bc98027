"""The registry's thread: what waits for it is bounded, and a request that fails costs only itself.

Zone: real.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ottla.registry.errors import RegistryError
from ottla.registry.registration import Decision
from ottla.registry.routes import Request, Routes
from ottla.registry.service import WAITING_MAX, RegistryService
from ottla.server.embedded import EmbeddedBroker

ASKED = Request({}, {})


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with EmbeddedBroker(config={}) as running:
        yield running.bootstrap


@pytest.fixture
def service(broker: str) -> Iterator[RegistryService]:
    made = RegistryService({"bootstrap.servers": broker})
    yield made
    made.stop()


def answered(_: Routes, __: Request) -> Decision:
    return Decision("yes")


def test_a_defect_costs_its_own_request(service: RegistryService) -> None:
    def fail(_: Routes, __: Request) -> Decision:
        raise ZeroDivisionError

    def refuse(_: Routes, __: Request) -> Decision:
        raise RegistryError(42205, "no")

    for handler, error in ((fail, ZeroDivisionError), (refuse, RegistryError)):
        with pytest.raises(error):
            service.submit(handler, ASKED).result(60)
        assert service.submit(answered, ASKED).result(60) == "yes"


def test_more_requests_than_may_wait_are_refused_and_a_stop_refuses_those_that_wait(service: RegistryService) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(_: Routes, __: Request) -> Decision:
        begun.set()
        assert go_on.wait(60)
        return Decision("late")

    first = service.submit(wait, ASKED)
    assert begun.wait(60)
    waiting = [service.submit(answered, ASKED) for _ in range(WAITING_MAX)]
    with pytest.raises(RegistryError) as refused:
        service.submit(answered, ASKED).result(60)
    assert refused.value.code == 50302
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    assert service._stopped.wait(60)
    go_on.set()
    assert first.result(60) == "late"
    stopping.join()
    with pytest.raises(RegistryError) as refused:
        waiting[-1].result(60)
    assert refused.value.code == 50301
