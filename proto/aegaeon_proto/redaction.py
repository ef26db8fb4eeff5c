"""Make messages of third-party exceptions fit for logs and for people.

A third-party message may quote a URL with its signature, a header with its token, or a megabyte of what a server sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

MOST_CHARS = 300
_READ_CHARS = 1 << 13  # of a message; what is behind is dropped before anything is searched
_SHORTEST_SECRET = 4  # shorter ones are no secrets, and would blank half of a message
_MOST_SECRETS = 4096

_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{0,20}://)([^\s'\"<>]*)")
_QUERY = re.compile(r"\?[^\s'\"<>?]*=[^\s'\"<>]*")
_SCHEME = re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",;]{4,}")
_NAMED = re.compile(
    r"(?i)([\w-]{0,40}(?:authorization|secret|password|token|signature|credential|api_?key|access_?key)[\w-]{0,40}"
    r"['\"]?\s{0,3}[=:]\s{0,3}[b'\"]{0,2})[^\s'\",;&]{4,}"
)
_FORMS = re.compile(r"\b(?:hf_[A-Za-z0-9]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*)")

_loaded: dict[str, None] = {}


def remember(secrets: Iterable[str]) -> None:
    """Register credentials that this process has read: no message made here will contain them."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            _loaded[secret] = None
    while len(_loaded) > _MOST_SECRETS:
        del _loaded[next(iter(_loaded))]


def sentence(error: BaseException) -> str:
    """The exception's type and message: one line of printable text, bounded, without credentials, without userinfo
    and queries of URLs."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - __str__ is third-party code, too
        message = ""
    text = redact(message)
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def encodable(text: str) -> str:
    """The text in a form that UTF-8 can encode: lone surrogates, possible in a tenant's files, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def redact(text: str) -> str:
    """Redact a text as `sentence` does."""
    for form in _secret_forms():  # before the cut, which could leave the beginning of one
        text = text.replace(form, "[redacted]")
    text = text[:_READ_CHARS]
    text = _URL.sub(lambda match: match[1] + _bare(match[2]), text)
    text = _QUERY.sub("?[redacted]", text)
    text = _FORMS.sub("[redacted]", text)
    text = _SCHEME.sub(r"\1 [redacted]", text)
    text = _NAMED.sub(r"\1[redacted]", text)
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 3] + "..."


def _secret_forms() -> list[str]:
    """Secrets in the forms that messages may contain, longest first, so that a secret inside another is redacted with
    it."""
    forms = {form for secret in list(_loaded) for form in (secret, quote(secret, safe=""), repr(secret)[1:-1])}
    return sorted(forms, key=len, reverse=True)


def _bare(rest: str) -> str:
    """The rest of a URL after `scheme://`, without userinfo, query and fragment."""
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    authority, slash, path = place.partition("/")
    return authority.rpartition("@")[2] + slash + path
