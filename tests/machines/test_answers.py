"""What a database answers from memory is what lies in it."""

import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest

from kellet.sdk.durable import Database

SCHEMA = "create table if not exists facts (id integer primary key, value)"


@pytest.fixture
def db() -> Database:
    found = Database(None, SCHEMA, 1)
    with found.transaction():
        found.run("insert into facts values (1, 'old')")
    return found


def value(db: Database, row: int = 1) -> object:
    found = db.one("select value from facts where id = ?", row)
    return found and found[0]


def asked(db: Database) -> list[str]:
    """The statements that SQLite is given from now on."""
    statements: list[str] = []
    db._db.set_trace_callback(statements.append)
    return statements


def test_the_same_question_is_asked_once_until_a_transaction(db: Database) -> None:
    statements = asked(db)
    assert [value(db), value(db), value(db, 2), value(db, 2)] == ["old", "old", None, None]
    assert len(statements) == 2
    with db.transaction():
        db.run("update facts set value = 'new'")
    assert value(db) == "new"


def test_inside_a_transaction_what_it_has_done_is_seen_and_not_remembered(db: Database) -> None:
    assert value(db) == "old"
    with contextlib.suppress(ArithmeticError), db.transaction():
        db.run("update facts set value = 'new'")
        assert value(db) == "new"
        raise ArithmeticError
    assert value(db) == "old"


def test_a_reader_beside_a_writer_waits_for_what_is_committed(db: Database) -> None:
    assert value(db) == "old"
    seen: list[object] = []
    reader = threading.Thread(target=lambda: seen.append(value(db)))
    with db.transaction():
        db.run("update facts set value = 'new'")
        reader.start()
        reader.join(0.05)
        assert seen == []
    reader.join()
    assert seen == ["new"]


def test_long_values_are_not_kept_and_many_answers_neither(db: Database) -> None:
    with db.transaction():
        db.run("update facts set value = ?", bytes(257))
    assert value(db) == bytes(257)
    assert not db._answers
    for row in range(200):
        value(db, row + 2)
    assert db._answers is not None
    assert len(db._answers) <= 64


def test_a_closed_database_answers_nothing(tmp_path: Path) -> None:
    db = Database(tmp_path / "facts.db", SCHEMA, 1)
    assert value(db) is None
    db.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        value(db)
