"""The records of claims for who looks at all of them now and then: read only when they have changed."""

from collections.abc import Sequence

from dra_driver.claims.store import Store
from dra_driver.model.records import ClaimRecord


class LiveRecords:
    """Callable from one thread. Raises StateError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._revision: object = None
        self._records: Sequence[ClaimRecord] = ()

    def __call__(self) -> Sequence[ClaimRecord]:
        """All records, oldest first."""
        # Taken first: what changes meanwhile is read at the next look.
        revision = self._store.revision()
        if revision != self._revision:
            self._records = tuple(self._store.records())
            self._revision = revision
        return self._records
