"""The tables of the state database: making them, knowing a database of another kind, and telling damage.

What the rows mean is the store's business. SQLite notices a torn file, but not a flipped bit inside a value: rows that
decide something carry a checksum, and what is stored twice (a table and its index) is compared.
"""

import sqlite3
import zlib
from pathlib import Path

from dra_driver.model.errors import StateError

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x44524147  # "DRAG"

_CLAIMS = """CREATE TABLE claims (
    uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
    prepared_at REAL NOT NULL, steps TEXT NOT NULL, devices TEXT NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID"""
_TIME_SLICES = """CREATE TABLE time_slices (
    gpu_uuid TEXT PRIMARY KEY, interval INTEGER NOT NULL, epoch TEXT NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID"""
_STATEMENTS = (
    _CLAIMS,
    "CREATE TABLE holds (gpu_uuid TEXT, claim_uid TEXT, PRIMARY KEY (gpu_uuid, claim_uid)) WITHOUT ROWID",
    "CREATE INDEX holds_by_claim ON holds (claim_uid)",
    _TIME_SLICES,
    "CREATE TABLE names (device TEXT PRIMARY KEY, uuid TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
)


def is_new(connection: sqlite3.Connection) -> bool:
    """Whether nobody has made anything in this database."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(version == 0 and tables == 0)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in a new database. Raises StateError for one of another kind, which is left as it is."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if is_new(connection):
            for statement in _STATEMENTS:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        else:
            check_version(connection, path)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StateError for a database of another version or program."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if version != SCHEMA_VERSION or application != _APPLICATION_ID:
        raise StateError(
            f"state database {path} has schema version {version}, this driver reads version {SCHEMA_VERSION}"
        )


def find_damage(connection: sqlite3.Connection) -> str:
    """What is damaged, '' for nothing; the rows of claims are left to who can read them."""
    # The full check, since it compares each index with its table: a claim whose hold was altered frees its card.
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        return str(result)
    found = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master") if sql}
    if found != set(_STATEMENTS):
        return "its tables are not those that were made"
    for key, value, stored in connection.execute("SELECT key, value, checksum FROM facts"):
        if stored != checksum(key, value):
            return f"the fact {key!r} was altered"
    return ""


def checksum(*content: object) -> int:
    """Of the values of one row."""
    return zlib.crc32("\0".join(map(str, content)).encode("utf-8", "surrogatepass"))
