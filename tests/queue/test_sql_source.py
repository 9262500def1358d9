"""The sources of the functions: each floor of queue/sql calls only itself and lower ones, and each body compiles."""

import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from pathlib import Path

import psycopg
import pytest

from airflow_provider_taskq.queue import install
from airflow_provider_taskq.queue.schema import FLOORS
from tests.internals import SCHEMAS

SOURCES = Path(str(files("airflow_provider_taskq.queue") / "sql"))
MADE = re.compile(r"^CREATE (?:FUNCTION|VIEW) ([\w.]+)(.*?)(?:\$\$.*?\$\$)?;\n", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"\btaskq(?:_internal)?\.\w+")
IGNORED = re.compile(r"--[^\n]*|'(?:[^']|'')*'")
LONGEST, WIDEST = 400, 120  # lines of a file, characters of a line


@cache
def places() -> dict[str, tuple[str, str]]:
    """The file and the text of each function and view."""
    return {
        made[1]: (str(path.relative_to(SOURCES)), IGNORED.sub("", made[0]))
        for path in sorted(SOURCES.rglob("*.sql"))
        for made in MADE.finditer(path.read_text())
    }


def calls() -> Iterator[tuple[str, str, str, str]]:
    """Each call from one file to another: the file and name of the caller, and those of the function it calls."""
    for name, (file, text) in places().items():
        for called in sorted(set(NAME.findall(text)) & places().keys()):
            if places()[called][0] != file:
                yield file, name, places()[called][0], called


def floor(file: str) -> int:
    return (*FLOORS, "views").index(Path(file).parent.name)


def test_no_function_calls_one_of_a_floor_above_its_own() -> None:
    assert len(places()) > 300
    assert [call for call in calls() if floor(call[2]) > floor(call[0])] == []


def test_no_files_of_a_floor_call_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for file, _, called, _ in calls():
        graph.setdefault(file, set()).add(called)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        ring = set(error.args[1])
        pytest.fail("\n".join(" ".join(call) for call in calls() if {call[0], call[2]} <= ring))


def test_no_file_and_no_line_is_too_long_to_be_read_at_once() -> None:
    """The lines of the bodies, too, which sqlfluff does not see."""
    lines = {path: path.read_text().splitlines() for path in SOURCES.rglob("*.sql")}
    assert [path for path in lines if len(lines[path]) > LONGEST] == []
    assert [line for path in lines for line in lines[path] if len(line) > WIDEST] == []


PLANNER = re.compile(r"\bSET (?:enable_\w+|\w+_cost|plan_cache_mode|work_mem)\b")
PROFILE = re.compile(r"^ {5}'([\w\s]+)'\)", re.MULTILINE)  # the functions of a profile


def test_the_profiles_of_public_functions_and_one_nested_function_set_the_planner() -> None:
    setting = [name.partition(".")[2] for name, (_, text) in places().items() if PLANNER.search(text)]
    assert setting == ["claimed_tasks"]
    named = " ".join(PROFILE.findall((SOURCES / "base/planner.sql").read_text())).split()
    assert "poll" in named
    assert [name for name in named if f"taskq.{name}" not in places()] == []
    assert len(set(named)) == len(named)


def test_each_function_compiles_without_a_warning(empty_dsn: str) -> None:
    warnings: list[str | None] = []
    with psycopg.connect(empty_dsn, options="-c plpgsql.extra_warnings=all") as conn:
        conn.add_notice_handler(lambda notice: warnings.append(f"{notice.message_primary} ({notice.context})"))
        conn.execute("CREATE FUNCTION pg_temp.f(a int) RETURNS int LANGUAGE plpgsql AS 'DECLARE a int; BEGIN END'")
        assert len(warnings) == 1, "the server reports warnings"
        install(conn)
    assert len(warnings) == 1


FAULTS = """SELECT p.oid::regprocedure::text, f.message FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang,
    LATERAL public.plpgsql_check_function_tb(p.oid, fatal_errors => false, extra_warnings => false) f
WHERE l.lanname = 'plpgsql' AND p.pronamespace::regnamespace::text = ANY (%s)"""
UNKNOWN = re.compile(
    "cannot (to determine|determinate a?) ?result of dynamic SQL|record .* is not assigned yet"  # known at run time
    "|target type is different type than source type"  # an array literal, or a row of a query from a table
    r"|function crc32\(bytea\) does not exist"  # called where the server has it
    '|name of parameter "group" is reserved keyword'  # a column of the page
)


def test_plpgsql_check_finds_no_fault_in_a_function(own_dsn: str) -> None:
    with psycopg.connect(own_dsn) as conn:
        available = conn.execute("SELECT FROM pg_available_extensions WHERE name = 'plpgsql_check'").fetchone()
        if available is None:
            pytest.skip("the server has no plpgsql_check: install it, and set TASKQ_TEST_PROGRAMS")
        conn.execute("CREATE EXTENSION plpgsql_check SCHEMA public")
        found = [fault for fault in conn.execute(FAULTS, (SCHEMAS,)).fetchall() if not UNKNOWN.match(fault[1])]
    assert found == []
