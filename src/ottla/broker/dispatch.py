"""Dispatches frames to handlers: checks versions, decodes requests, encodes responses, and turns errors into responses.

Zone: deterministic. Produce and Fetch go straight to their hand-written handlers; all other requests are decoded by
their declared message, handled by a declared handler, and encoded. An ApiError of a handler becomes the error of its
response; a malformed frame closes the connection with one log line. Any other exception fails its request or its
connection (`containment`), unless it is raised inside a change (`ottla.changes`).

Until the broker is ready it serves other brokers only. Clients' requests wait, one per connection, so that no client
gets metadata of a cluster that this broker does not know yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from ottla.acls import Operation, ResourceType
from ottla.broker.containment import Containment, error_response, name_of
from ottla.broker.element_errors import element_errors
from ottla.broker.slicing import SMALL, SlicedRequests
from ottla.changes import HalfChanged
from ottla.errors import ApiError, ErrorCode
from ottla.requests import (
    Context,
    Declaration,
    Encoded,
    Handler,
    InParts,
    InPieces,
    RightsOf,
    handlers_of,
)
from ottla.seams import Failure, Gate, Network, Part, Peer, Slot
from ottla.security.broker_proof import BROKER_PRINCIPAL
from ottla.security.client_login import ClientLogin
from ottla.wire.apis import API_TABLE, ApiKey, warm_up
from ottla.wire.codec import decode, encode
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import decode_request_header, response_header
from ottla.wire.messages import ApiVersionsResponse

HotHandler = Callable[[Slot, memoryview, int, int, int], Gate]
"""(slot, frame, version, correlation id, position of the body)."""
_FIRST: Final = Struct(">hhih")
"""Key, version, correlation id, length of the client id."""
_HEADER_MIN: Final = 10
AGAIN_MAX: Final = 128 * 1024
"""Most bytes of a request of a hand-written handler that is decoded again to refuse its elements; the connection of a
larger one is closed."""
_JOINED: Final = 4096
"""Up to this size a response and its header are sent as one part, which is cheaper."""


class HotApi:
    """An API whose handler decodes requests and encodes responses by itself."""

    __slots__ = ("count", "declaration", "flexible_from", "handler", "max_version", "min_version")

    def __init__(self, declaration: Declaration, handler: HotHandler) -> None:
        self.declaration = declaration
        self.handler = handler
        self.min_version = declaration.min_version
        self.max_version = declaration.max_version
        self.flexible_from = API_TABLE[declaration.api_key].flexible_from
        self.count = 0


class ColdApi:
    """An API with declared messages and a declared handler."""

    __slots__ = (
        "brokers_from",
        "cluster_operation",
        "count",
        "declaration",
        "errors",
        "handler",
        "max_version",
        "min_version",
        "request",
    )

    def __init__(self, declaration: Declaration, handler: Handler) -> None:
        self.declaration = declaration
        self.handler = handler
        self.min_version = declaration.min_version
        self.max_version = declaration.max_version
        versions = range(self.min_version, self.max_version + 1)
        self.brokers_from = next(filter(declaration.is_for_brokers, versions), versions.stop)
        """The version from which on only brokers may send requests."""
        self.cluster_operation = declaration.cluster_operation
        self.request = API_TABLE[declaration.api_key].request
        self.count = 0
        self.errors = 0


class Dispatch:
    """The table of APIs, and the dispatch of requests to them."""

    def __init__(
        self,
        network: Network,
        later: Callable[[Callable[[], None]], object],
        inter_broker_listener: str | None = None,
        is_alone: bool = False,
        brokers_log_in: bool = False,
        containment: Containment | None = None,
        rights_of: RightsOf | None = None,
        login: ClientLogin | None = None,
    ) -> None:
        """later: calls a function in a turn of its own, soon.

        inter_broker_listener: the listener for requests that only brokers may send; None: any.
        is_alone: there can be no other broker, so such requests come from this one or are forged.
        brokers_log_in: only connections with BROKER_PRINCIPAL belong to brokers.
        rights_of: what a connection may do; None: there is no authorizer.
        login: judges the frames of connections that have not logged in; None: no listener has SASL.
        """
        self.sliced = SlicedRequests(
            network,
            later,
            self._handle_cold_api,
            self._send_answer,
            self._on_failed,
            self._refuse_elements,
            error_response,
        )
        self._network = network
        self.containment = containment or Containment(network)
        self._broker_listener = inter_broker_listener
        self._is_alone = is_alone
        self._brokers_log_in = brokers_log_in
        self._rights_of = rights_of
        self._login = login
        self._early: dict[Peer, tuple[Slot, memoryview]] | None = None
        """Requests of clients that wait while only brokers are served; None when all are served."""
        self.hot: dict[int, HotApi] = {}
        self.cold: dict[int, ColdApi] = {}

    def add_hot(self, declaration: Declaration, handler: HotHandler) -> None:
        """Register a hand-written handler for an API."""
        self.hot[int(declaration.api_key)] = HotApi(declaration, handler)

    def add_handlers(self, owners: Iterable[object]) -> None:
        """Register the handlers that these objects declare."""
        for owner in owners:
            for declaration, handler in handlers_of(owner):
                assert declaration.api_key not in self.cold, f"API {declaration.api_key} is declared twice"
                self.cold[declaration.api_key] = ColdApi(declaration, handler)

    def all_declarations(self) -> Iterator[Declaration]:
        """The declarations of all registered APIs, by key."""
        apis: dict[int, HotApi | ColdApi] = {**self.hot, **self.cold}
        return (api.declaration for _, api in sorted(apis.items(), key=itemgetter(0)))

    def version_ranges(self) -> dict[int, tuple[int, int]]:
        """The versions for ApiVersions: key → (lowest, highest version)."""
        return {each.api_key: (each.min_version, each.max_version) for each in self.all_declarations()}

    def warm_up(self) -> Iterator[ApiKey]:
        """Compile the codecs of all registered APIs, one pair per step, so that no request has to wait for it."""
        return warm_up((key, *versions) for key, versions in self.version_ranges().items())

    # -- one request -----------------------------------------------------------------------------------------------

    def on_frame(self, slot: Slot, frame: memoryview) -> Gate:
        """Handle one request; respond now, or later through the slot. Raises HalfChanged."""
        key = version = correlation_id = -1
        try:
            login = self._login
            if login is not None and slot.peer not in login.served:
                # Until a connection is in `served`, its frames pass the rules of the login. None: it is a request of a
                # connection that may be served.
                gate = login.judge_frame(slot, frame, self._refusal_of_login)
                if gate is not None:
                    return gate
            # The hot path reads the header inline; flexible versions with tags or a bad length take the full decoder.
            if len(frame) >= _HEADER_MIN:
                key, version, correlation_id, length = _FIRST.unpack_from(frame)
                hot = self.hot.get(key)
                if hot is not None and hot.min_version <= version <= hot.max_version:
                    hot.count += 1
                    pos = _HEADER_MIN + length if length > 0 else _HEADER_MIN
                    if version >= hot.flexible_from:
                        # The byte after the client id is the number of tagged fields (KIP-482), which is 0 in nearly
                        # all requests. A length of -1 is a client id that is null.
                        if pos >= len(frame) or frame[pos] or length < -1:
                            pos = decode_request_header(frame).body_pos
                        else:
                            pos += 1
                    return hot.handler(slot, frame, version, correlation_id, pos)
            return self._on_cold_frame(slot, frame)
        except MalformedMessage as error:
            self._network.close_connection(slot.peer, f"sent a request that cannot be decoded: {error}")
            return Gate.WAIT
        except HalfChanged:
            raise
        except Exception as error:  # noqa: BLE001  # it fails this request or this connection, not the broker
            decoded = partial(self._decode_again, key, version, frame)
            self.containment.contain_defect(error, slot, key, version, correlation_id, decoded)
            return Gate.NEXT

    @staticmethod
    def _refusal_of_login(frame: memoryview) -> Sequence[Part] | None:
        """The response to a request that is sent in the middle of a login; None: the API has none for the whole."""
        key, version, correlation_id, _, _ = decode_request_header(frame)
        text = f"Unexpected Kafka request of type {name_of(key)} during SASL authentication."
        api = API_TABLE.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            return None
        # An error in each element would need the decoded request: that is too much work for a peer without a login.
        if not any(field.name == "error_code" and field.exists_in(version) for field in api.response.FIELDS):
            return None
        response: Any = error_response(key, ApiError(ErrorCode.ILLEGAL_SASL_STATE, text))
        return [response_header(key, version, correlation_id), *encode(response, version)]

    def _decode_again(self, key: int, version: int, frame: memoryview) -> Any | None:
        """The request of a hand-written handler as a message; None if the connection has to be closed."""
        if key not in self.hot or len(frame) > AGAIN_MAX:
            return None
        request, _ = decode(API_TABLE[key].request, version, frame, decode_request_header(frame).body_pos)
        # With acks=0 the client reads no response: it would take one for the response to its next request. As in Kafka,
        # a closed connection is the only way to report the error.
        return None if getattr(request, "acks", 1) == 0 else request

    def _on_cold_frame(self, slot: Slot, frame: memoryview) -> Gate:
        key, version, correlation_id, client_id, body_pos = decode_request_header(frame)
        cold = self.cold.get(key)
        if cold is None or not cold.min_version <= version <= cold.max_version:
            return self._refuse_version(slot, key, version, correlation_id)
        # Not ready: hold a client's request, which may need the cluster's view.
        if self._early is not None and self._may_wait(cold.declaration, key, version):
            self._early[slot.peer] = slot, self._network.hold_frame(slot, frame)
            return Gate.WAIT
        cold.count += 1
        request: Any = None

        def fail(context: Context, error: Exception) -> None:
            self._on_failed(context, error, request)

        rights = None if self._rights_of is None else self._rights_of(slot.peer)
        context = Context(key, version, correlation_id, client_id, slot, self._send_answer, fail=fail, rights=rights)
        try:
            if len(frame) > SMALL:
                self.sliced.start_request(cold, context, frame, body_pos)
                return Gate.NEXT if context.answered else Gate.WAIT
            request, _ = decode(cold.request, version, frame, body_pos)
            response = self._handle_cold_api(cold, context, request)
        except (HalfChanged, MalformedMessage):
            raise
        except Exception as error:  # noqa: BLE001  # it has changed nothing, or whole changes only
            self._on_failed(context, error, request)
            return Gate.NEXT
        if response is not None:
            self._send_answer(context, response)
        return Gate.NEXT if context.answered else Gate.WAIT

    def _on_failed(self, context: Context, error: Exception, request: Any = None) -> None:
        """Answer a request whose handler has failed, and ignore a response that it may still send later."""
        context.failed = True
        if not context.answered:
            context.answered = True
            key, version = context.api_key, context.api_version
            self.containment.contain_defect(error, context.slot, key, version, context.correlation_id, lambda: request)

    def _refuse_elements(self, context: Context, error: Exception, request: Any) -> Any:
        """The response that refuses a part of a request whose handler has failed. Raises the error if there is none."""
        context.failed = True
        return self.containment.refuse_elements(error, context.slot, context.api_key, context.api_version, request)

    @staticmethod
    def _may_wait(declaration: Declaration, api_key: int, version: int) -> bool:
        is_early = declaration.early or declaration.is_for_brokers(version)
        return api_key != ApiKey.API_VERSIONS and not is_early

    def hold_clients(self) -> None:
        """Hold clients' requests back until `serve_clients`."""
        self._early = {}

    def serve_clients(self) -> None:
        """Serve clients, beginning with the requests that wait."""
        # None before the loop: `on_frame` would hold the same requests back again.
        early, self._early = self._early, None
        for slot, frame in (early or {}).values():
            self.on_frame(slot, frame)

    def on_gone(self, peer: Peer) -> None:
        """Drop the waiting and sliced requests of a connection that has ended."""
        self.sliced.on_gone(peer)
        if self._early:
            self._early.pop(peer, None)

    def _handle_cold_api(self, cold: ColdApi, context: Context, request: Any) -> object:
        try:
            if context.api_version >= cold.brokers_from and not self.is_broker(context.peer):
                context.is_allowed(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)  # for the audit log
                raise ApiError(
                    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"only brokers may send {name_of(context.api_key)}"
                )
            if context.rights is not None and cold.cluster_operation is not None:
                context.check_allowed(cold.cluster_operation, ResourceType.CLUSTER)
            return cold.handler(context, request)
        except ApiError as error:
            cold.errors += 1
            # Without an error field for the whole response each element gets the error; else `_send_answer` fills the
            # field.
            return element_errors(context.api_key, context.api_version, request, error.as_value()) or error.as_value()
        except Failure as failure:
            cold.errors += 1
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))

    def is_for_brokers(self, api_key: int, version: int) -> bool:
        """Whether only brokers may send this API in this version."""
        cold = self.cold.get(api_key)
        return cold is not None and version >= cold.brokers_from

    def is_broker(self, peer: Peer) -> bool:
        """Whether the connection belongs to a broker of this cluster."""
        if not peer.listener:  # a broker's request to itself does not pass a listener
            return True
        if self._is_alone:
            return False
        # 1. The proof and the rights of a broker are valid at the listeners that allow them. While the listener between
        # brokers is changed by a rolling restart, brokers arrive at the former and at the future one.
        if self._brokers_log_in:
            return peer.principal == BROKER_PRINCIPAL
        if self._rights_of is not None:
            return self._rights_of(peer) is None
        # 2. Otherwise only the listener distinguishes brokers from clients.
        return self._broker_listener in (None, peer.listener)

    def _send_answer(self, context: Context, response: object) -> None:
        # A defect was answered in place of the handler, some of whose steps may still run and answer.
        if context.failed:
            return
        assert not context.answered, f"API {context.api_key} answered twice"
        if type(response) is InPieces:
            self.sliced.join_pieces(context, response)
            return
        if type(response) is InParts:
            self.sliced.handle_parts(self.cold[context.api_key], context, response)
            return
        context.answered = True
        if isinstance(response, ApiError):
            error = response
            response = error_response(context.api_key, error)
            if response is None:
                self._network.close_connection(context.slot.peer, f"{name_of(context.api_key)} failed: {error}")
                return
        self._send_response(context.slot, context.api_key, context.api_version, context.correlation_id, response)

    def _send_response(self, slot: Slot, api_key: int, version: int, correlation_id: int, response: Any) -> None:
        """Encode and send a response. One that cannot be encoded fails its request only."""
        try:
            head = response_header(api_key, version, correlation_id)
            parts = response.parts if type(response) is Encoded else encode(response, version)
        except Exception as error:  # noqa: BLE001  # encoding changes nothing
            self.containment.contain_defect(error, slot, api_key, version, correlation_id)
            return
        only = parts[0] if len(parts) == 1 else None
        try:
            if type(only) is bytes and len(only) < _JOINED:
                self._network.send_reply(slot, [head + only])
            else:
                self._network.send_reply(slot, [head, *parts])
        except MemoryError as error:  # the shell may have sent the beginning
            self.containment.close_connection(error, slot, api_key, version)

    def _refuse_version(self, slot: Slot, api_key: int, version: int, correlation_id: int) -> Gate:
        """Answer ApiVersions in version 0 (KIP-511); for other APIs the response format is unknown: close."""
        if api_key == ApiKey.API_VERSIONS:
            self._send_response(slot, api_key, 0, correlation_id, self._versions_refusal())
            return Gate.NEXT
        what = f"API {api_key} ({name_of(api_key)}) in version {version}"
        self._network.close_connection(slot.peer, f"sent {what}, which is not supported")
        return Gate.WAIT

    def _versions_refusal(self) -> ApiVersionsResponse:
        low, high = self.version_ranges()[ApiKey.API_VERSIONS]
        # The range of ApiVersions itself is enough: the client repeats the request in a version from it.
        keys = [ApiVersionsResponse.ApiVersion(api_key=int(ApiKey.API_VERSIONS), min_version=low, max_version=high)]
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys)
