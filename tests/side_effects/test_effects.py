import threading
from collections.abc import Callable

import psycopg
import pytest

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import Task
from dagster_idempotent.engine import effects
from dagster_idempotent.engine.tables import replace_rows
from dagster_idempotent.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    LeaseLost,
    PayloadMismatch,
    TaskNotFound,
)
from dagster_idempotent.store.database import Connection, Database
from dagster_idempotent.testing.fault_proxy import FaultProxy
from tests.side_effects.conftest import House

SEND = "UPDATE accounts SET balance = balance + %s WHERE name = %s RETURNING balance"


@pytest.fixture
def bank(house: House) -> House:
    house.change("CREATE TABLE accounts (name text PRIMARY KEY, balance integer NOT NULL CHECK (balance >= 0))")
    house.change("INSERT INTO accounts VALUES ('A', 20), ('B', 0)")
    return house


def task_key(task: Task) -> tuple[str, TaskId]:
    return task.pipeline, task.task_id


def balances(house: House) -> dict[str, int]:
    return {row["name"]: row["balance"] for row in house.query("SELECT * FROM accounts")}


def transfer(connection: Connection) -> dict[str, int]:
    left = connection.execute(SEND, (-10, "A")).fetchone()
    got = connection.execute(SEND, (10, "B")).fetchone()
    assert left is not None
    assert got is not None
    return {"A": left["balance"], "B": got["balance"]}


def send_in_block(database: Database, task: Task) -> object:
    with effects.transaction(database, task.pipeline, task.task_id, "send", request={"amount": 10}) as tx:
        if tx.is_first:
            tx.result = transfer(tx.connection)
    return tx.result


def send_as_function(database: Database, task: Task) -> object:
    return effects.once(database, task.pipeline, task.task_id, "send", transfer, request={"amount": 10})


SENDERS = pytest.mark.parametrize("send", [send_in_block, send_as_function])
Send = Callable[[Database, Task], object]


@SENDERS
def test_the_second_run_returns_the_first_result_and_changes_nothing(bank: House, send: Send) -> None:
    task = bank.allocate()
    assert send(bank.database, task) == {"A": 10, "B": 10}
    assert send(bank.database, task) == {"A": 10, "B": 10}
    assert balances(bank) == {"A": 10, "B": 10}


def test_another_task_and_another_name_are_other_effects(bank: House) -> None:
    send_in_block(bank.database, bank.allocate(0))
    send_in_block(bank.database, bank.allocate(1))
    assert balances(bank) == {"A": 0, "B": 20}


@SENDERS
def test_the_same_name_with_another_request_is_refused_naming_what_differs(bank: House, send: Send) -> None:
    task = bank.allocate()
    send(bank.database, task)
    with pytest.raises(PayloadMismatch, match="/amount"):
        effects.once(bank.database, task.pipeline, task.task_id, "send", transfer, request={"amount": 5})
    assert balances(bank) == {"A": 10, "B": 10}


def test_an_exception_in_the_block_undoes_all_of_it(bank: House) -> None:
    task = bank.allocate()
    with pytest.raises(ZeroDivisionError), effects.transaction(bank.database, *task_key(task), "send") as tx:
        tx.result = transfer(tx.connection)["A"] // 0
    assert balances(bank) == {"A": 20, "B": 0}
    assert send_in_block(bank.database, task) == {"A": 10, "B": 10}


def test_a_block_that_forgets_to_ask_whether_it_is_the_first_cannot_change_anything(bank: House) -> None:
    task = bank.allocate()
    send_in_block(bank.database, task)
    with (
        pytest.raises(ConfigurationError, match=r"if tx\.is_first"),
        effects.transaction(bank.database, task.pipeline, task.task_id, "send", request={"amount": 10}) as tx,
    ):
        tx.execute(SEND, (-10, "A"))
    assert balances(bank) == {"A": 10, "B": 10}


def test_nothing_can_be_executed_after_the_block(bank: House) -> None:
    task = bank.allocate()
    with effects.transaction(bank.database, task.pipeline, task.task_id, "send") as tx:
        tx.execute(SEND, (1, "A"))
    with pytest.raises(ConfigurationError, match="its block is over"):
        tx.execute(SEND, (1, "A"))


def test_a_commit_of_the_users_own_inside_the_block_is_refused(bank: House) -> None:
    task = bank.allocate()
    with pytest.raises(psycopg.Error), effects.transaction(bank.database, *task_key(task), "send") as tx:
        tx.execute("UPDATE accounts SET balance = 10 WHERE name = 'A'; COMMIT")
    assert balances(bank) == {"A": 20, "B": 0}


def test_an_effect_needs_an_existing_task(bank: House) -> None:
    task = bank.allocate()
    with pytest.raises(TaskNotFound):
        effects.once(bank.database, task.pipeline, "2026-W40-7", "send", transfer)
    assert balances(bank) == {"A": 20, "B": 0}


def test_a_result_that_json_cannot_carry_undoes_the_change(bank: House) -> None:
    task = bank.allocate()
    with pytest.raises(ConfigurationError, match="cannot be kept as JSON"):
        effects.once(bank.database, task.pipeline, task.task_id, "send", lambda c: (transfer(c), object()))
    assert balances(bank) == {"A": 20, "B": 0}


def test_ten_callers_at_once_change_it_once_and_get_one_answer(bank: House) -> None:
    task = bank.allocate()
    barrier, answers = threading.Barrier(10), []

    def caller(send: Send) -> None:
        database = Database(bank.database.url)
        barrier.wait(30)
        answers.append(send(database, task))
        database.close()

    threads = [threading.Thread(target=caller, args=(send,)) for send in [send_in_block, send_as_function] * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [{"A": 10, "B": 10}] * 10
    assert balances(bank) == {"A": 10, "B": 10}


def test_a_stale_worker_changes_nothing_after_another_took_the_task_over(bank: House) -> None:
    stale = bank.claim(bank.allocate(), "run-1")
    bank.claim(stale.task, "run-2", finished=True)
    with pytest.raises(LeaseLost, match="run-2"):
        effects.once(bank.database, stale.lease.pipeline, stale.lease.task_id, "send", transfer, lease=stale.lease)
    with (
        pytest.raises(LeaseLost, match="run-2"),
        effects.transaction(bank.database, stale.lease.pipeline, stale.lease.task_id, "send", lease=stale.lease) as tx,
    ):
        transfer(tx.connection)
    assert balances(bank) == {"A": 20, "B": 0}


def test_the_lease_is_renewed_while_a_transaction_is_open(bank: House) -> None:
    work = bank.claim(bank.allocate())
    with effects.transaction(bank.database, work.lease.pipeline, work.lease.task_id, "send", lease=work.lease) as tx:
        transfer(tx.connection)
        before = bank.query("SELECT lease_expires_at AS at FROM dagster_idempotent.tasks")[0]["at"]
        bank.claim(work.task)  # the same owner enters again: its expiry moves, and it does not wait for us
        assert bank.query("SELECT lease_expires_at AS at FROM dagster_idempotent.tasks")[0]["at"] > before
    assert balances(bank) == {"A": 10, "B": 10}


def test_an_effect_that_happened_is_final_whoever_asks(bank: House) -> None:
    send_in_block(bank.database, bank.allocate())
    for statement in (
        "UPDATE dagster_idempotent.effects SET result = '1'",
        "DELETE FROM dagster_idempotent.effects",
        "TRUNCATE dagster_idempotent.effects",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation):
            bank.change(statement)


def cut_everywhere(bank: House, send: Send) -> int:
    """Cut the connection before and after every message of a transfer; return how many messages one takes."""
    with FaultProxy(_address(bank), protocol="postgres") as proxy:
        url = proxy.url_for(bank.database.url)
        clean = Database(url)
        send(clean, bank.allocate(10_000))
        clean.close()
        assert proxy.wait_idle()
        messages = proxy.counts.to_upstream
        points = [(n, when) for n in range(1, messages + 1) for when in ("before", "after")]
        for number, (n, when) in enumerate(points):
            bank.change("UPDATE accounts SET balance = CASE name WHEN 'A' THEN 20 ELSE 0 END")
            task = bank.allocate(number)
            assert proxy.wait_idle()
            proxy.at(proxy.counts.to_upstream + n, action=proxy.cut_all, when=when)
            cut = Database(url)
            try:
                first = send(cut, task)
            except (psycopg.Error, DatabaseUnavailable):
                first = None
            finally:
                cut.close()
            assert first in (None, {"A": 10, "B": 10})
            assert send(bank.database, task) == {"A": 10, "B": 10}, (n, when)
            assert balances(bank) == {"A": 10, "B": 10}, (n, when)
    return messages


def _address(bank: House) -> tuple[str, int] | str:
    with psycopg.connect(bank.database.url) as connection:
        info = connection.info
        return f"{info.host}/.s.PGSQL.{info.port}" if info.host.startswith("/") else (info.host, info.port)


@SENDERS
def test_cut_off_at_every_message_and_run_again_the_money_moves_once(bank: House, send: Send) -> None:
    assert cut_everywhere(bank, send) > 20


def test_rows_of_a_task_are_replaced_whole_however_often(house: House) -> None:
    house.change("CREATE TABLE reports (pipeline text, task_id text, line integer, words text)")
    task, other = house.allocate(0), house.allocate(1)
    with house.database.transaction() as connection:
        replace_rows(connection, "reports", other.pipeline, other.task_id, [{"line": 1, "words": "other"}])
    for _ in range(2):
        rows = [{"line": 1, "words": "a"}, {"line": 2, "words": "b"}]
        with house.database.transaction() as connection:
            assert replace_rows(connection, "public.reports", task.pipeline, task.task_id, rows) == 2
    assert house.query("SELECT task_id, line FROM reports ORDER BY 1, 2") == [
        {"task_id": task.task_id, "line": 1},
        {"task_id": task.task_id, "line": 2},
        {"task_id": other.task_id, "line": 1},
    ]


def test_eight_writers_at_once_leave_the_rows_of_one(house: House) -> None:
    house.change("CREATE TABLE reports (pipeline text, task_id text, writer integer)")
    task, barrier = house.allocate(), threading.Barrier(8)

    def write(writer: int) -> None:
        connection = house.database.connect()
        barrier.wait(30)
        replace_rows(connection, "reports", task.pipeline, task.task_id, [{"writer": writer}] * 3)
        connection.close()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    (row,) = house.query("SELECT count(*) AS n, count(DISTINCT writer) AS writers FROM reports")
    assert (row["n"], row["writers"]) == (3, 1)


def test_rows_with_different_columns_are_refused(house: House) -> None:
    task = house.allocate()
    with house.database.transaction() as connection, pytest.raises(ConfigurationError, match="same columns"):
        replace_rows(connection, "reports", task.pipeline, task.task_id, [{"a": 1}, {"b": 1}])
