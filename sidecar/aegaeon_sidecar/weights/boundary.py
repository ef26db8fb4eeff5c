"""The boundary for errors of tenants' sources: servers, and libraries that parse their responses, can raise anything.

Such an error fails one model, with a reason that contains no secrets. An error of our own code between two reads of
a source passes through: it is a defect and ends the process, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from aegaeon_proto.credentials import CredentialsError
from aegaeon_proto.outbound.client import Client
from aegaeon_proto.outbound.errors import GivenUpError, OutboundError, UnreachableError
from aegaeon_proto.redaction import sentence
from aegaeon_sidecar.domain.errors import FillCancelledError, SidecarError, SourceError
from aegaeon_sidecar.weights.addresses import key_of
from aegaeon_sidecar.weights.remote import BrokenOffError, PastEndError, Remote, RemoteFile

_LISTING_S = 600.0  # of all requests that find out which files there are: two for each of a thousand, and their sums


@contextmanager
def boundary(name: str) -> Iterator[None]:
    """Every exception of the source `name` becomes SourceError, BrokenOffError, PastEndError or FillCancelledError."""
    try:
        yield
    except (SidecarError, BrokenOffError, PastEndError):
        raise
    except GivenUpError as error:
        raise FillCancelledError(f"{name}: fetching was cancelled") from error
    except UnreachableError as error:
        raise BrokenOffError(str(error)) from error
    except (CredentialsError, OutboundError) as error:
        message = str(error)
        is_located = isinstance(error, CredentialsError) or message.startswith(("http://", "https://"))
        raise SourceError(message if is_located else f"{name} {message}") from error
    except Exception as error:  # a tenant's server may make ssl or botocore raise anything
        raise SourceError(f"{name}: its source fails with {sentence(error)}") from error


@contextmanager
def _final() -> Iterator[None]:
    """Convert errors at a place that is not retried."""
    try:
        yield
    except BrokenOffError as error:
        raise SourceError(str(error), error.retry_after_s) from error
    except PastEndError as error:
        raise SourceError(str(error)) from error


class Guarded:
    """A Remote that raises nothing but what Remote says. `make` makes the one behind it; `key`: see key_of."""

    def __init__(
        self, name: str, client: Client, credentials_file: str, make: Callable[[], Remote], names: Sequence[str] = ()
    ) -> None:
        self._client = client
        with _final(), boundary(name):
            self._remote = make()
        self.address = self._remote.address
        self.key = key_of(self.address, credentials_file, names)

    def files(self) -> list[RemoteFile]:
        """See Remote."""
        watch = self._client.watch
        watch.paced = False
        with boundary(self.address), watch.within(_LISTING_S, "finding out which files there are"):
            try:
                return self._remote.files()
            except PastEndError as error:
                raise SourceError(str(error)) from error

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Remote. At the least rate of the client's limits, over all reads of a model."""
        self._client.watch.paced = True
        with boundary(self.address):
            yield from self._remote.read(file, start)
