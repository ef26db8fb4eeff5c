"""What can go wrong on the way to a server of the cluster.

KubeError   the API server, or a pool's scheduler, refused a call, did not answer, or there is none
"""

# Too many requests; no server behind a balancer; not within the API server's own time limit.
_OVERLOADED = (429, 503, 504)


class KubeError(Exception):
    """`status` is that of HTTP; 0: there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_unavailable(self) -> bool:
        """It says something of the server, and nothing of what was asked: the same may be asked again."""
        return self.status in (0, *_OVERLOADED)
