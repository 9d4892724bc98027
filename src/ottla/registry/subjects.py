"""Names of subjects and of the contexts that they are in.

Zone: pure. `:.lab:orders-value` is the subject `orders-value` in the context `.lab`; others are in the context `.`.
Ids of schemas are unique within a context. `:*:` before a prefix means all contexts.
"""

from __future__ import annotations

from typing import Final

DEFAULT_CONTEXT: Final = "."
ALL_CONTEXTS: Final = ":*:"


def context_of(subject: str) -> str:
    """The context of a subject, or of the name `:.lab:` of the context itself."""
    if subject.startswith(":.") and (end := subject.find(":", 1)) > 0:
        return subject[1:end]
    return DEFAULT_CONTEXT


def qualify(context: str, subject: str) -> str:
    """The full name of a subject that a path has named within a context."""
    if context == DEFAULT_CONTEXT or subject.startswith(":."):
        return subject
    return f":{context}:{subject}"


def has_prefix(subject: str, prefix: str) -> bool:
    """Whether a list of subjects with this prefix contains the subject."""
    if prefix.startswith(ALL_CONTEXTS):
        rest = prefix.removeprefix(ALL_CONTEXTS)
        return subject.startswith(rest) or _name_of(subject).startswith(rest)
    return subject.startswith(prefix) and context_of(subject) == context_of(prefix)


def _name_of(subject: str) -> str:
    context = context_of(subject)
    return subject if context == DEFAULT_CONTEXT else subject[len(context) + 2 :]
