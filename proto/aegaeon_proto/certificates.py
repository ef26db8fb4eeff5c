"""The certificates of a process: a folder of `ca.crt`, `tls.crt` and `tls.key`, read again for every new connection."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import NamedTuple

_log = logging.getLogger(__name__)
_FILES = ("ca.crt", "tls.crt", "tls.key")
OTHER_ROLE = "its certificate belongs to another role of this pool; check that the address is that of the right process"
NOT_TAKEN = "it closed the connection: it may have rejected the client certificate; see its log"
NO_TLS = "it does not use TLS; set the pool's certificates (`tls`) there, too"
"""why a peer could not be dialled"""


class TlsError(Exception):
    """The folder of certificates cannot be used; the message says why."""


class Files(NamedTuple):
    """The contents of the three files, and their folder."""

    authority: bytes
    certificate: bytes
    key: bytes
    folder: Path


def read(folder: Path) -> Files:
    """Read the three files of one version. Raises TlsError."""
    data = folder / "..data"  # a mounted Secret changes as a whole by this link
    try:
        at = data.resolve() if data.exists() else folder
        authority, certificate, key = ((at / name).read_bytes() for name in _FILES)
        return Files(authority, certificate, key, at)
    except OSError as error:
        raise TlsError(f"tls: {error.filename}: cannot be read: {error.strerror}") from error


def not_of_this_pool(cause: str, folder: Path | None) -> str:
    """A sentence about a peer with a certificate of another authority."""
    return f"its certificate is not one of this pool: {cause}; compare ca.crt in {folder} on both sides"


def client_context(folder: Path) -> ssl.SSLContext:
    """A TLS context for one connection to a server. Raises TlsError."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, read(folder))


class ServerContext:
    """The TLS context of a server, renewed with its files. Unreadable files leave it unchanged; only creating it raises
    TlsError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = read(folder)
        self._newest = _server(self._files)

    def current(self) -> ssl.SSLContext:
        """The context for one connection, made from the current files."""
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
