"""The plans of all statements inside a call, as the server reports them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import scalar_row, tuple_row

SETTINGS = {
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "client_min_messages": "log",
}
PARTS = """SELECT c.relname, p.relname FROM pg_inherits h
    JOIN pg_class c ON c.oid = h.inhrelid JOIN pg_class p ON p.oid = h.inhparent"""


@dataclass(frozen=True, slots=True)
class Explained:
    """The rows that a call read, by table and index (as the schema names them), and the pages that it touched."""

    rows: dict[tuple[str, str], int]
    whole: set[str]  # tables that were read from one end to the other
    pages: int
    visited: int  # rows that all nodes of all plans gave or threw away, those that were only compared in a join too
    scans: int  # how often an index was searched
    statements: int  # the call itself, and those of the functions that it calls

    @property
    def most(self) -> int:
        """The most rows that were read of a table, or by one of its indexes."""
        return max(self.rows.values(), default=0)


def explain(conn: psycopg.Connection, work: Callable[[], object]) -> Explained:
    """Runs a call under auto_explain, which reports the plans of all statements, also those inside functions.

    A poll advances fronts at random. Equal calls draw equal numbers here, so that their work can be compared.
    """
    reported: list[str] = []
    conn.execute("LOAD 'auto_explain'")
    with conn.cursor(row_factory=tuple_row) as cursor:
        names: dict[str, str] = dict(cursor.execute(PARTS).fetchall())
    conn.execute("SELECT setseed(0.5)")
    for name, value in SETTINGS.items():
        conn.execute("SELECT set_config(%s, %s, false)", (name, value))
    reported.clear()

    def listen(message: psycopg.errors.Diagnostic) -> None:
        reported.append(message.message_primary or "")

    conn.add_notice_handler(listen)
    work()
    conn.remove_notice_handler(listen)
    conn.execute("RESET client_min_messages")
    conn.execute("RESET auto_explain.log_min_duration")
    plans = [json.loads(text[text.index("{") :])["Plan"] for text in reported if "plan:" in text]
    rows: dict[tuple[str, str], int] = {}
    whole: set[str] = set()
    visited = scans = 0
    for node in (node for plan in plans for node in _nodes(plan)):
        visited += _looked_at(node) + int(0.5 + node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"])
        table = names.get(node.get("Relation Name", ""), node.get("Relation Name", ""))
        index = names.get(node.get("Index Name", ""), node.get("Index Name", ""))
        scans += int(node["Actual Loops"]) if index else 0
        if node["Node Type"] == "Seq Scan" and node["Actual Loops"]:
            whole.add(table)
        if (table or index) and node["Node Type"] != "ModifyTable":
            rows[table, index] = rows.get((table, index), 0) + _looked_at(node)
    return Explained(rows, whole, max(_pages(plan) for plan in plans), visited, scans, len(plans))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from _nodes(part)


def _looked_at(node: dict[str, Any]) -> int:
    """The rows that a node returned or discarded."""
    thrown = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    return int(0.5 + (node["Actual Rows"] + sum(node.get(name, 0) for name in thrown)) * node["Actual Loops"])


def _pages(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def changed_rows(conn: psycopg.Connection, work: Callable[[], object]) -> int:
    """The number of rows that a call updates or deletes, as the server counts them."""
    with conn.transaction():
        before = _changed(conn)
        work()
        return _changed(conn) - before


def _changed(conn: psycopg.Connection) -> int:
    with conn.cursor(row_factory=scalar_row) as cursor:
        cursor.execute("SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::int FROM pg_stat_xact_user_tables")
        return int(cursor.fetchone() or 0)
