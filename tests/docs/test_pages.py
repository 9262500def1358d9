"""Every page of the documents is a program, and runs as it is written."""

import re
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest
from _pytest.mark import ParameterSet
from psycopg import sql

from tests.docs.blocks import BlockError, read_blocks
from tests.docs.pages import Page

pytestmark = pytest.mark.promise("The examples, and the code of each page of this site, run as they are written")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
STARTS_AIRFLOW_OR_SPARK = re.compile(r"\bairflow[. ]|\bexample_dags/|\bpyspark\b|\bspark-submit\b|\bdrain\(spark,")
OF_ANOTHER_TEST = {"docs/tutorial.md"}  # test_tutorial.py
EMPTY_DATABASE = "<!-- database: empty -->"  # the page installs the schema itself


def pages() -> list[ParameterSet]:
    """A parameter for each page; it is slow if the page starts Airflow or Spark."""
    parameters = []
    for path in (page for page in PAGES if str(page.relative_to(ROOT)) not in OF_ANOTHER_TEST):
        code = "".join(re.findall(r"^ *```\w.*?^ *```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))
        marks = (
            [pytest.mark.slow, pytest.mark.documents, pytest.mark.timeout(1800)]
            if STARTS_AIRFLOW_OR_SPARK.search(code)
            else []
        )
        parameters.append(pytest.param(path, id=str(path.relative_to(ROOT)), marks=marks))
    return parameters


@pytest.mark.slow
@pytest.mark.parametrize("path", pages())
def test_a_page_runs_as_it_is_written(
    path: Path,
    request: pytest.FixtureRequest,
    server_dsn: str,
    tmp_path: Path,
    python_environment: Mapping[str, str],
) -> None:
    blocks = read_blocks(path, ROOT)
    if not blocks:
        return
    empty = EMPTY_DATABASE in path.read_text(encoding="utf-8")
    dsn = str(request.getfixturevalue("empty_dsn" if empty else "own_dsn"))
    folder = tmp_path / "page"
    folder.mkdir()
    roles, failure = _roles(server_dsn), ""
    try:
        with Page(folder, dsn, python_environment) as page:
            page.run(blocks)
    except BlockError as error:
        failure = str(error)
    finally:
        _drop_roles(server_dsn, dsn, _roles(server_dsn) - roles)
    if failure:
        pytest.fail(failure, pytrace=False)


def _roles(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as conn:
        return {name for (name,) in conn.execute("SELECT rolname FROM pg_roles").fetchall()}


def _drop_roles(server_dsn: str, dsn: str, roles: set[str]) -> None:
    """Drop the roles that a page has created, which all databases of the server share."""
    for role in map(sql.Identifier, sorted(roles)):
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
        with psycopg.connect(server_dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("DROP ROLE {}").format(role))
