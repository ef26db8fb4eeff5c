"""What can go wrong on the way to a server of the cluster.

KubeError   the API server, or a pool's scheduler, refused a call, did not answer, or there is none
"""


class KubeError(Exception):
    """`status` is that of HTTP; 0: there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
