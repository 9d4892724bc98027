"""Carries out the actions of a report on ordinary files.

Zone: real. The caller holds the directory's lock. Each file is durable before the next one is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ottla.storage.layout import CLEAN_SHUTDOWN
from ottla.storage.verify.findings import Action, Cut, Finding, Remove, Write


def repair_directory(root: str, findings: Iterable[Finding]) -> list[Finding]:
    """Carry out the actions of all findings that have some; returns those. Raises OSError.

    After a cut the mark of a clean stop is removed first, so that the next start recovers the logs.
    """
    done = [finding for finding in findings if finding.actions]
    if any(isinstance(action, Cut) for finding in done for action in finding.actions):
        _remove_path(os.path.join(root, CLEAN_SHUTDOWN))
    for finding in done:
        for action in finding.actions:
            _apply_action(root, action)
    return done


def _apply_action(root: str, action: Action) -> None:
    path = os.path.join(root, action.path)
    if isinstance(action, Cut):
        _cut_path(path, action.size)
    elif isinstance(action, Write):
        _write_path(path, action.content)
    else:
        assert isinstance(action, Remove)
        _remove_path(path)


def _cut_path(path: str, size: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_path(path: str, content: bytes) -> None:
    beside = path + ".tmp"
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    _sync_directory_of(path)


def _remove_path(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)
        _sync_directory_of(path)


def _sync_directory_of(path: str) -> None:
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
