"""The certificates of a process: a folder of `ca.crt`, `tls.crt` and `tls.key`, read again for every new connection."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import NamedTuple

_log = logging.getLogger(__name__)
_FILES = ("ca.crt", "tls.crt", "tls.key")
OTHER_ROLE = "its certificate is of this pool, but not of the role dialled; does the address lead to another process?"
NOT_TAKEN = "it closed the connection: it may not take the certificate shown to it; its log says why"
NO_TLS = "it does not speak TLS; give it the pool's certificates (`tls`) too"
"""why a peer could not be dialled"""


class TlsError(Exception):
    """The folder of certificates cannot be used; the message says why."""


class Files(NamedTuple):
    """What is in the three files, and in which folder they were."""

    authority: bytes
    certificate: bytes
    key: bytes
    folder: Path


def read(folder: Path) -> Files:
    """All three of one version. Raises TlsError."""
    data = folder / "..data"  # a mounted Secret changes as a whole by this link
    try:
        at = data.resolve() if data.exists() else folder
        authority, certificate, key = ((at / name).read_bytes() for name in _FILES)
        return Files(authority, certificate, key, at)
    except OSError as error:
        raise TlsError(f"tls: {error.filename}: cannot be read: {error.strerror}") from error


def not_of_this_pool(cause: str, folder: Path | None) -> str:
    """Why a peer could not be dialled."""
    return f"its certificate is not one of this pool: {cause}; compare ca.crt in {folder} on both sides"


def client_context(folder: Path) -> ssl.SSLContext:
    """For one connection. Raises TlsError."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, read(folder))


class ServerContext:
    """Of a server. What cannot be read when a connection comes leaves it as it was.

    Raises TlsError when it is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = read(folder)
        self._newest = _server(self._files)

    def current(self) -> ssl.SSLContext:
        """For one connection: with what is in the folder now."""
        try:
            if (files := read(self._folder)) != self._files:
                self._newest, self._files = _server(files), files
                _log.info("certificates of %s were renewed", self._folder)
        except TlsError as error:
            _log.warning("certificates stay as they were: %s", error)
        return self._newest


def _server(files: Files) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    context.num_tickets = 0  # each connection shows its certificate
    return context


def _context(protocol: int, files: Files) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=files.authority.decode("ascii", errors="replace"))
        context.load_cert_chain(files.folder / "tls.crt", files.folder / "tls.key")
    except (OSError, ValueError) as error:
        raise TlsError(f"tls: {files.folder}: not a certificate, its key and an authority in PEM: {error}") from error
    return context
