"""The keys of an issuer of bearer tokens (JWKS, RFC 7517), which are read again while the broker runs.

Zone: real. A thread reads the keys; logins use those that were read last, in the loop. Signatures are computed by
joserfc (`pip install 'ottla[oauth]'`). When the keys are read:

1. At the start. A broker starts without the keys of an endpoint that is away, and refuses tokens until it has them;
   a file that cannot be read is a mistake in the settings, and refuses the start.
2. Every `sasl.oauthbearer.jwks.endpoint.refresh.ms`.
3. When a token names a key that is not known, at most every UNKNOWN_KEY_S: the issuer may have new keys.
4. After a failure, at growing intervals. Until then the old keys count.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import logging
import threading
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key, import_key
from joserfc.jws import JWSRegistry

from ottla.config.sasl_listeners import BearerSettings
from ottla.seams import Failure, Kind
from ottla.security.sasl.oauthbearer import TokenRefused

log = logging.getLogger(__name__)

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""Those with a public key. `none` and those with a shared secret are not among them."""
KEYS_MAX: Final = 1_000
"""Most keys of one issuer."""
ANSWER_MAX: Final = 1 << 20
"""Most bytes of an answer with keys."""
TIMEOUT_S: Final = 10
UNKNOWN_KEY_S: Final = 10
_HEADER_MAX, _CLAIMS_MAX, _SIGNATURE_MAX = 8 * 1024, 256 * 1024, 8 * 1024
"""Most bytes of the parts of a token."""
_STOP_S: Final = 1
_UNREADABLE: Final = (OSError, ValueError, http.client.HTTPException)


class TokenKeys:
    """The keys of one endpoint (`ottla.seams.TokenSignatures`)."""

    def __init__(self, listener: str, settings: BearerSettings) -> None:
        """Raises Failure when the keys are in a file that cannot be used."""
        self._where = f"listener {listener}: the keys at {settings.jwks_url}"
        self._settings = settings
        self._registry = _new_registry()
        self._keys: Mapping[str | None, Key] = {}
        """Key id → key; None: the only key, if there is one."""
        self._wakes = threading.Event()
        self._stopped = False
        self._may_wake_at = 0.0
        self._failures = 0
        if settings.jwks_url.startswith("http:"):
            log.warning("listener %s: the keys of tokens come without TLS; who can change them can be anyone", listener)
        if settings.jwks_url.startswith("file:"):
            self._keys = self._load_file()
        self._thread = threading.Thread(target=self._run, name="token-keys", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it may still wait for an answer, which is not used."""
        self._stopped = True
        self._wakes.set()
        self._thread.join(_STOP_S)

    # -- logins ------------------------------------------------------------------------------------------------------

    def claims_of(self, token: str) -> Mapping[str, Any]:
        """The claims of a token whose signature is right. Raises TokenRefused."""
        key = self._find_key(token)
        try:
            return jwt.decode(token, key, list(ALGORITHMS), registry=self._registry).claims
        except (JoseError, ValueError, RecursionError) as error:
            raise TokenRefused(f"the token cannot be verified: {type(error).__name__}") from None

    def _find_key(self, token: str) -> Key:
        key_id = _key_id_of(token)
        key = self._keys.get(key_id)
        if key is None:
            self._read_soon()
            raise TokenRefused("the token was signed by a key that the issuer does not publish")
        return key

    def _read_soon(self) -> None:
        now = time.monotonic()
        if now >= self._may_wake_at:
            # The limit, because peers without a login choose the key id: they must not make the broker flood the
            # issuer.
            self._may_wake_at = now + UNKNOWN_KEY_S
            self._wakes.set()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        has_read = bool(self._keys)
        while not self._stopped:
            if has_read:
                self._wakes.wait(self._pause_s())
            if not self._stopped:
                self.read_keys()
            has_read = True
            # A token that waked during the read may have named a key that was read just now.
            self._wakes.clear()

    def _pause_s(self) -> float:
        settings = self._settings
        if not self._failures:
            return settings.refresh_ms / 1000
        backoff_ms: int = settings.backoff_ms << min(self._failures - 1, 30)
        return min(backoff_ms, settings.backoff_max_ms) / 1000

    def read_keys(self) -> None:
        """Read the keys; if that fails, keep the old ones."""
        try:
            self._keys = parse_keys(_fetch(self._settings.jwks_url))
        except _UNREADABLE as error:
            self._failures += 1
            if self._failures == 1:
                log.warning("%s cannot be read: %s; trying again", self._where, error)
            return
        if self._failures:
            log.info("%s were read", self._where)
        self._failures = 0

    def _load_file(self) -> Mapping[str | None, Key]:
        try:
            return parse_keys(_fetch(self._settings.jwks_url))
        except _UNREADABLE as error:
            raise Failure(Kind.NOT_DONE, f"{self._where} cannot be read: {error}") from None


def parse_keys(content: bytes) -> Mapping[str | None, Key]:
    """The keys for signatures in a JWKS document. Keys that cannot be used are left out. Raises ValueError."""
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("the document has no list of keys")
    found: dict[str | None, Key] = {}
    unnamed: list[Key] = []
    for entry in entries[:KEYS_MAX]:
        # "oct" is a shared secret: everyone who can read the document could sign with it.
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
            continue
        try:
            key = import_key(entry)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        unnamed.append(key)
        if isinstance(entry.get("kid"), str):
            found[entry["kid"]] = key
    # A token without a key id can mean a single key only: trying each of several would multiply the cost of a bad
    # token.
    if len(unnamed) == 1:
        found[None] = unnamed[0]
    if not found:
        raise ValueError("the document has no key for signatures that can be used")
    return found


def _fetch(url: str) -> bytes:
    """The content at a URL. Raises OSError, ValueError or HTTPException."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310  the scheme was checked at the start
        # One byte more than allowed, so that a longer answer is noticed without being read.
        content: bytes = answer.read(ANSWER_MAX + 1)
    if len(content) > ANSWER_MAX:
        raise ValueError(f"the answer has more than {ANSWER_MAX} bytes")
    return content


def _key_id_of(token: str) -> str | None:
    """The id of the key in the header of a token. Raises TokenRefused."""
    head = token.partition(".")[0]
    if len(head) > _HEADER_MAX:
        raise TokenRefused("the header of the token is too long")
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise TokenRefused("the header of the token is not JSON in base64") from None
    key_id = header.get("kid") if isinstance(header, dict) else None
    if not isinstance(key_id, str | None):
        raise TokenRefused("the key id of the token is not a text")
    return key_id


def _new_registry() -> JWSRegistry:
    registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
    registry.max_header_length = _HEADER_MAX
    registry.max_payload_length = _CLAIMS_MAX
    registry.max_signature_length = _SIGNATURE_MAX
    return registry
