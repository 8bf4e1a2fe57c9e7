"""The state store: one SQLite database in the plugin's directory, one row a claim.

It is the only memory of what was prepared; the API server and NVML may be down when a claim is unprepared. Every
change is one durable transaction, so its cost does not grow with the number of claims. Each claim row carries a
checksum over its content, since SQLite itself would not notice a flipped bit inside a text.

The database also holds what is believed of time slices (NVML cannot read them): a belief counts only under the
driver epoch it was made in, and is dropped in the same transaction that records the intent to change the slice.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from dra_driver.claims import codec, schema
from dra_driver.model.claims import ClaimRef
from dra_driver.model.errors import StateDamaged, StateError
from dra_driver.model.records import ClaimRecord, ClaimState, Holder

STATE_FILE = "state.db"
_BUSY_SECONDS = 10.0
_RESERVE_BYTES = 512 * 1024
_FULL = "disk is full"
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MEND = "restart this driver: it sets the database aside and rebuilds what CDI files and claims prove"

_COLUMNS = "uid, namespace, name, state, prepared_at, steps, devices, checksum"
_Row = tuple[str, str, str, str, float, str, str, int]


class Store:
    """An open state database. Methods may be called from any thread; each raises StateError when it cannot."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._reserve = path.with_name("state.reserve")
        self._lock = threading.Lock()
        self.files = (path, path.with_name(f"{path.name}-wal"))
        self.damage = ""
        """What was found to be damaged since it was opened, and the remedy; '' for nothing."""

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Open or create. Raises StateError for a damaged file, another schema version or a read-only directory."""
        with _translated(path):
            connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                if not schema.is_new(connection):  # before anything is set, so that another's stays as it is
                    schema.check_version(connection, path)
                connection.execute("PRAGMA journal_mode = WAL")
                # Commits survive the process, which is all that is asked: a record does not outlive the boot.
                # NORMAL keeps the database whole over a power cut and saves a disk flush at each commit.
                connection.execute("PRAGMA synchronous = NORMAL")
                schema.migrate(connection, path)
            except BaseException:
                connection.close()
                raise
        path.chmod(0o600)
        store = cls(connection, path)
        store._keep_reserve()
        return store

    @classmethod
    def open_read_only(cls, path: Path) -> "Store":
        """Open for reading beside a running driver. Raises StateError when the file is missing or damaged."""
        if not path.is_file():
            raise StateError(f"no state database at {path}: the driver has not run here, or its directory is another")
        with _translated(path):
            connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
            try:
                schema.check_version(connection, path)
            except BaseException:
                connection.close()
                raise
        return cls(connection, path)

    def put_back(self) -> bool:
        """Write the database anew if its file was taken away, for who opens it next; whether that was so.

        A file that is there is left as it is, whoever made it. Raises StateError.
        """
        if self._path.exists():
            return False
        copy = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with self._reading() as connection, contextlib.closing(sqlite3.connect(copy)) as anew:
                connection.backup(anew)
            copy.chmod(0o600)
            try:
                os.link(copy, self._path)
            except FileExistsError:
                return False
        except OSError as error:
            raise StateError(f"state database {self._path} was removed and cannot be put back: {error}") from error
        finally:
            with contextlib.suppress(OSError):
                copy.unlink(missing_ok=True)
        return True

    def close(self) -> None:
        """Close. Idempotent."""
        with self._lock:
            self._connection.close()

    def verify(self) -> None:
        """Read everything once. Raises StateError naming what is damaged."""
        with self._reading() as connection:
            damage = schema.find_damage(connection)
        if damage:
            raise StateError(f"state database {self._path} is damaged: {damage}")
        for _ in self.records():
            pass

    def get(self, uid: str) -> ClaimRecord | None:
        """The record of a claim."""
        with self._reading() as connection:
            row = connection.execute(f"SELECT {_COLUMNS} FROM claims WHERE uid = ?", (uid,)).fetchone()
        return self._record(row) if row else None

    def records(self) -> Iterator[ClaimRecord]:
        """All records, oldest first."""
        with self._reading() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM claims ORDER BY prepared_at, uid").fetchall()
        return iter([self._record(row) for row in rows])

    def revision(self) -> object:
        """Differs after each change of the database, this process's or another's. Costs no look at a table."""
        with self._reading() as connection:
            others = connection.execute("PRAGMA data_version").fetchone()[0]
            return connection.total_changes, others

    def holders(self, gpu_uuids: Iterable[str]) -> list[Holder]:
        """Who holds these cards, or devices on them."""
        wanted = list(gpu_uuids)
        marks = ",".join("?" * len(wanted))
        query = (
            f"SELECT {_COLUMNS} FROM claims WHERE uid IN (SELECT claim_uid FROM holds WHERE gpu_uuid IN ({marks})) "
            "ORDER BY prepared_at, uid"
        )
        with self._reading() as connection:
            rows = connection.execute(query, wanted).fetchall()
        records = [self._record(row) for row in rows]
        return [
            Holder(claim=record.claim, state=record.state, device=device)
            for record in records
            for device in record.devices
            if device.gpu_uuid in wanted
        ]

    def counts(self) -> dict[str, int]:
        """Devices of completed claims by type (``gpu``, ``mig``)."""
        counts = {"gpu": 0, "mig": 0}
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT json_extract(d.value, '$.uuid') = json_extract(d.value, '$.gpu_uuid'), count(*) "
                "FROM claims, json_each(claims.devices) d WHERE claims.state = ? GROUP BY 1",
                (ClaimState.COMPLETED.value,),
            ).fetchall()
        for is_gpu, number in rows:
            counts["gpu" if is_gpu else "mig"] += number
        return counts

    def put(self, record: ClaimRecord, forget_time_slices: Iterable[str] = ()) -> None:
        """Write or replace a claim's record; in the same transaction drop what is believed of these cards."""
        row = _row(record)
        with self._writing() as connection:
            connection.execute("DELETE FROM holds WHERE claim_uid = ?", (record.claim.uid,))
            connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            connection.executemany(
                "INSERT OR IGNORE INTO holds VALUES (?, ?)",
                [(device.gpu_uuid, record.claim.uid) for device in record.devices],
            )
            _forget(connection, forget_time_slices)

    def complete(self, record: ClaimRecord, time_slices: Mapping[str, int], epoch: str) -> None:
        """Mark a claim completed and remember the slices that were set."""
        row = _row(record)
        with self._writing() as connection:
            connection.execute(
                "UPDATE claims SET state = ?, checksum = ? WHERE uid = ?", (row[3], row[7], record.claim.uid)
            )
            _remember(connection, time_slices, epoch)

    def remove(self, uid: str, time_slices: Mapping[str, int] | None = None, epoch: str = "") -> None:
        """Remove a claim and remember the slices that were reset. Missing is success.

        On a full disk the reserve is spent: pods that are evicted for want of space must be able to go.
        """
        try:
            self._remove(uid, time_slices, epoch)
        except StateError as error:
            if _FULL not in str(error) or not self._spend_reserve():
                raise
            self._remove(uid, time_slices, epoch)

    def _keep_reserve(self) -> None:
        try:
            if not self._reserve.exists() or self._reserve.stat().st_size < _RESERVE_BYTES:
                self._reserve.write_bytes(bytes(_RESERVE_BYTES))
        except OSError:
            self._reserve.unlink(missing_ok=True)

    def _spend_reserve(self) -> bool:
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def _remove(self, uid: str, time_slices: Mapping[str, int] | None, epoch: str) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM claims WHERE uid = ?", (uid,))
            connection.execute("DELETE FROM holds WHERE claim_uid = ?", (uid,))
            _remember(connection, time_slices or {}, epoch)

    def clear(self) -> None:
        """Forget all claims and beliefs: after a reboot nothing of them is true."""
        with self._writing() as connection:
            for table in ("claims", "holds", "time_slices"):
                connection.execute(f"DELETE FROM {table}")

    def time_slice(self, gpu_uuid: str, epoch: str) -> int | None:
        """The slice a card is believed to have, None when nothing is known under this epoch."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT interval, checksum FROM time_slices WHERE gpu_uuid = ? AND epoch = ?", (gpu_uuid, epoch)
            ).fetchone()
        # An altered belief is none.
        return int(row[0]) if row and row[1] == schema.checksum(gpu_uuid, row[0], epoch) else None

    def forget_time_slices(self, gpu_uuids: Iterable[str]) -> None:
        """Drop what is believed of these cards."""
        with self._writing() as connection:
            _forget(connection, gpu_uuids)

    def fact(self, key: str) -> str | None:
        """A remembered fact of the node, such as ``boot_id``."""
        with self._reading() as connection:
            row = connection.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else None

    def set_fact(self, key: str, value: str) -> None:
        """Remember a fact."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (key, value, schema.checksum(key, value))
            )

    def swap_names(self, names: Mapping[str, str]) -> dict[str, str]:
        """Remember device name -> UUID; returns the names that had another UUID before, with that UUID."""
        with self._writing() as connection:
            before = dict(connection.execute("SELECT device, uuid FROM names").fetchall())
            news = [(name, uuid) for name, uuid in names.items() if before.get(name) != uuid]
            connection.executemany("INSERT OR REPLACE INTO names VALUES (?, ?)", news)
        return {name: before[name] for name, uuid in names.items() if before.get(name, uuid) != uuid}

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock, _translated(self._path):
                yield self._connection
        except StateDamaged as error:
            raise self._damaged(error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _record(self, row: _Row) -> ClaimRecord:
        try:
            return _parse(row)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            damage = StateDamaged(f"state database {self._path}: the record of claim {row[0]} {error}")
            raise self._damaged(damage) from error

    def _damaged(self, error: StateDamaged) -> StateDamaged:
        error.add_note(_MEND)
        self.damage = f"{error}; {_MEND}"
        return error


@lru_cache(maxsize=1024)
def _parse(row: _Row) -> ClaimRecord:
    """The record of a row, kept: each claim on a card looks at all its neighbours. Raises ValueError and the like."""
    uid, namespace, name, state, prepared_at, steps, devices, checksum = row
    if checksum != schema.checksum(*row[:-1]):
        raise ValueError("was altered: the database is damaged")
    return ClaimRecord(
        claim=ClaimRef(namespace, name, uid),
        state=ClaimState(state),
        plan=codec.make_plan(devices, steps),
        prepared_at=prepared_at,
    )


def _row(record: ClaimRecord) -> _Row:
    content = (
        record.claim.uid,
        record.claim.namespace,
        record.claim.name,
        record.state.value,
        float(record.prepared_at),
        codec.dump_steps(record.plan.steps),
        codec.dump_devices(record.devices),
    )
    return (*content, schema.checksum(*content))


def _forget(connection: sqlite3.Connection, gpu_uuids: Iterable[str]) -> None:
    connection.executemany("DELETE FROM time_slices WHERE gpu_uuid = ?", [(uuid,) for uuid in gpu_uuids])


def _remember(connection: sqlite3.Connection, time_slices: Mapping[str, int], epoch: str) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO time_slices VALUES (?, ?, ?, ?)",
        [(uuid, level, epoch, schema.checksum(uuid, level, epoch)) for uuid, level in time_slices.items()],
    )


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the kind, the rest says more.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise (StateDamaged if code in _DAMAGE else StateError)(f"state database {path}: {error}") from error
