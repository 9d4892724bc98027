"""Contexts of TLS that follow their settings and files while the broker runs.

Zone: real. A context that cannot be loaded, or whose certificate has other names than the present one, is not used: the
present context stays, with one log line per change. New connections use the new context, open ones stay.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable

from ottla.seams import Failure, Kind
from ottla.server.connections.tls.contexts import LoadedContext, TlsSettings

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Time of change, size and inode of each file; None: it cannot be read."""


class ReloadableContext:
    """The context of one listener, or of the connections to other brokers. Its methods read files: they block."""

    __slots__ = ("_allow_names", "_allow_subject", "_load", "_loaded", "_name", "_settings", "_stamp")

    def __init__(
        self,
        name: str,
        settings: TlsSettings,
        load: Callable[[TlsSettings], LoadedContext],
        *,
        allow_subject: bool = False,
        allow_names: bool = False,
    ) -> None:
        """name: for log lines. allow_subject, allow_names: `ssl.allow.dn.changes` and `ssl.allow.san.changes`.

        Raises Failure.
        """
        self._name = name
        self._settings = settings
        self._load = load
        self._allow_subject = allow_subject
        self._allow_names = allow_names
        self._stamp = _stamp_of(settings.files)
        try:
            self._loaded = load(settings)
        except Failure as failure:
            raise Failure(failure.kind, f"{name}: {failure.message}") from None

    @property
    def context(self) -> ssl.SSLContext:
        """The context for new connections."""
        return self._loaded.context

    def follow_settings(self, settings: TlsSettings) -> None:
        """Use these settings from now on, if they make a context."""
        if settings != self._settings:
            self._settings = settings
            self._stamp = _stamp_of(settings.files)
            self._reload()

    def follow_files(self) -> None:
        """Load again if a file has changed since the last attempt."""
        stamp = _stamp_of(self._settings.files)
        if stamp != self._stamp:
            self._stamp = stamp
            self._reload()

    def _reload(self) -> None:
        try:
            loaded = self._load(self._settings)
            self._check_names(loaded)
        except Failure as failure:
            log.error("%s: the present certificates stay in use: %s", self._name, failure.message)
            return
        self._loaded = loaded
        log.info("%s: new connections use the changed settings and certificates of TLS", self._name)

    def _check_names(self, loaded: LoadedContext) -> None:
        """Compare the names in the new certificate with the present ones (KIP-978). Raises Failure."""
        if loaded.subject != self._loaded.subject and not self._allow_subject:
            raise Failure(
                Kind.NOT_DONE,
                f"the new certificate is for {loaded.subject!r}, the present one for {self._loaded.subject!r}; set "
                "ssl.allow.dn.changes=true to allow that",
            )
        if not loaded.names >= self._loaded.names and not self._allow_names:
            raise Failure(
                Kind.NOT_DONE,
                "the new certificate lacks alternative names of the present one; set ssl.allow.san.changes=true to "
                "allow that",
            )


def _stamp_of(files: tuple[str, ...]) -> Stamp:
    return tuple(map(_stamp_file, files))


def _stamp_file(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
