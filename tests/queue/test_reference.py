"""The comments of the schema taskq are the reference of its functions and views."""

import pytest

from airflow_provider_taskq.queue import TaskQueue

pytestmark = pytest.mark.promise("A program in any language calls the same functions")

OBJECTS = """
    SELECT p.oid::regprocedure::text AS name, obj_description(p.oid, 'pg_proc') AS text
    FROM pg_proc p WHERE p.pronamespace = 'taskq'::regnamespace
    UNION ALL SELECT c.oid::regclass::text, obj_description(c.oid, 'pg_class')
    FROM pg_class c WHERE c.relnamespace = 'taskq'::regnamespace AND c.relkind IN ('r', 'v')
    ORDER BY 1
"""
CODES = {f"TQ00{number}" for number in range(9)}


def test_every_object_of_the_schema_taskq_has_a_useful_comment_which_names_known_error_codes_only(
    queue: TaskQueue,
) -> None:
    texts = {name: text or "" for name, text in queue.conn.execute(OBJECTS).fetchall()}
    assert len(texts) > 100
    assert [name for name, text in texts.items() if len(text) < 30 or not text.endswith(".")] == []
    assert {word.strip(",;.") for text in texts.values() for word in text.split() if word.startswith("TQ0")} <= CODES


def test_a_function_that_looks_a_topic_up_says_so_in_its_comment(queue: TaskQueue) -> None:
    rows = queue.conn.execute(
        """SELECT p.oid::regprocedure::text, obj_description(p.oid, 'pg_proc') FROM pg_proc p
           WHERE p.pronamespace = 'taskq'::regnamespace
             AND p.prosrc ~ '\\.(find|accessible)_topic\\(p_topic'"""
    ).fetchall()
    assert len(rows) > 30
    assert [name for name, text in rows if "TQ001" not in text and "Errors: those of" not in text] == []


def test_tables_and_helpers_are_in_the_internal_schema(queue: TaskQueue) -> None:
    """Executors write to two tables by COPY, which cannot write through a function."""
    tables = "SELECT relname FROM pg_class WHERE relnamespace = 'taskq'::regnamespace AND relkind IN ('r', 'p', 'S')"
    found = {name for (name,) in queue.conn.execute(tables).fetchall()}
    assert found == {"staged", "staged_task"}


def test_no_function_swallows_an_error_that_it_does_not_name(queue: TaskQueue) -> None:
    assert queue.conn.execute("SELECT proname FROM pg_proc WHERE prosrc ~* 'WHEN\\s+OTHERS'").fetchall() == []
