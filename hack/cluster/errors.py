"""What can go wrong with the cluster itself."""


class ClusterError(Exception):
    """Something could not be built, started or removed; the text says what and why, in one line."""


class ApiRefused(ClusterError):
    """The API server answered with an error. status: HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NotReady(ClusterError):
    """Something did not come about in time."""
