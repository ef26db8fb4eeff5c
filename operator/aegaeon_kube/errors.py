"""Errors of calls to servers of the cluster.

KubeError   the API server, or a pool's scheduler, refused a call, did not answer, or does not exist
"""

# Too many requests; no server behind a balancer; not within the API server's own time limit.
_OVERLOADED = (429, 503, 504)


class KubeError(Exception):
    """An error of a call. `status`: HTTP status; 0: no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_unavailable(self) -> bool:
        """True for an error of the server, not of the request, which may be repeated."""
        return self.status in (0, *_OVERLOADED)
