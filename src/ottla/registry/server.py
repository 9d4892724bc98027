"""The registry's HTTP server, on aiohttp.

Zone: real. A request has BODY_MAX bytes and is answered with a JSON document; errors have Schema Registry's shape,
`{"error_code":…,"message":…}`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from ottla.client.errors import ClientError
from ottla.registry.errors import RegistryError
from ottla.registry.routes import READING, WRITING, Handler, Raw, Request
from ottla.registry.service import RegistryService

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
BODY_MAX: Final = 2 * 1024 * 1024
_WITHOUT_CONTEXT: Final = ("/", "/contexts", "/v1/metadata/id")
_logger = logging.getLogger(__name__)
Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_application(service: RegistryService, credentials: dict[str, str] | None = None) -> web.Application:
    """The application. credentials: user → password of those who may ask; None: everybody may."""
    application = web.Application(client_max_size=BODY_MAX, middlewares=[_report_errors, _authenticator(credentials)])
    for routes, wrap in ((READING, _reading), (WRITING, _writing)):
        for (method, path), handler in routes.items():
            answer = wrap(service, handler)
            application.router.add_route(method, path, answer)
            if path not in _WITHOUT_CONTEXT:
                application.router.add_route(method, "/contexts/{context}" + path, answer)
    return application


def _reading(service: RegistryService, handler: Handler) -> Answering:
    async def answer(request: web.Request) -> web.StreamResponse:
        return _respond(await asyncio.to_thread(service.answer, handler, await _read_request(request)))

    return answer


def _writing(service: RegistryService, handler: Handler) -> Answering:
    async def answer(request: web.Request) -> web.StreamResponse:
        return _respond(await asyncio.wrap_future(service.submit(handler, await _read_request(request))))

    return answer


async def _read_request(request: web.Request) -> Request:
    return Request(dict(request.match_info), dict(request.query), await _read_body(request))


async def _read_body(request: web.Request) -> Any:
    if not request.can_read_body:
        return None
    text = await request.text()
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError) as error:
        raise RegistryError(400, f"the body is not JSON: {error}") from error


def _respond(answer: object, status: int = 200) -> web.Response:
    text = answer.text if isinstance(answer, Raw) else json.dumps(answer, separators=(",", ":"))
    return web.Response(text=text, status=status, content_type=MEDIA_TYPE)


def _refuse(error: RegistryError) -> web.Response:
    return _respond({"error_code": error.code, "message": error.message}, error.status)


@web.middleware
async def _report_errors(request: web.Request, handler: Answering) -> web.StreamResponse:
    try:
        return await handler(request)
    except RegistryError as error:
        return _refuse(error)
    except web.HTTPException as error:
        return _refuse(RegistryError(error.status, f"HTTP {error.status} {error.reason}"))
    except UnicodeDecodeError as error:
        return _refuse(RegistryError(400, f"the body is not text: {error}"))
    except ClientError as error:
        return _refuse(RegistryError(50001, f"Error in the backend data store: {error}"))
    except Exception as error:  # a defect costs its own request
        _logger.exception("%s %s could not be answered", request.method, request.path)
        return _refuse(RegistryError(50001, f"Internal error: {type(error).__name__}"))


def _authenticator(credentials: dict[str, str] | None) -> Any:
    @web.middleware
    async def authenticate(request: web.Request, handler: Answering) -> web.StreamResponse:
        if credentials is not None and not _is_known(credentials, request.headers.get("Authorization", "")):
            answer = _refuse(RegistryError(401, "Unauthorized"))
            answer.headers["WWW-Authenticate"] = 'Basic realm="SchemaRegistry"'
            return answer
        return await handler(request)

    return authenticate


def _is_known(credentials: dict[str, str], header: str) -> bool:
    kind, _, token = header.partition(" ")
    try:
        user, _, password = base64.b64decode(token, validate=True).decode().partition(":")
    except ValueError:
        return False
    expected = credentials.get(user)
    known = hmac.compare_digest((expected or "").encode(), password.encode())
    return kind.lower() == "basic" and expected is not None and known


async def serve_registry(
    service: RegistryService,
    host: str,
    port: int,
    *,
    stop: asyncio.Event,
    credentials: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    on_ready: Callable[[str, int], None] = lambda _host, _port: None,
) -> None:
    """Serve until `stop` is set. on_ready: called with the address. Raises OSError: the port is in use."""
    runner = web.AppRunner(make_application(service, credentials), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        on_ready(*runner.addresses[0][:2])
        await stop.wait()
    finally:
        await runner.cleanup()
