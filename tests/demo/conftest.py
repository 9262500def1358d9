"""A database for the tables of an Airflow that these tests start."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.queue import connect


@pytest.fixture
def dsn(own_dsn: str) -> str:
    """A new database, as the demonstration installs the schema."""
    return own_dsn


@pytest.fixture(scope="module")
def metadata(server_dsn: str) -> Iterator[str]:
    """The URL of a database for Airflow's metadata, which is dropped after the module's tests."""
    name = f"airflow_demo_{uuid4().hex[:8]}"
    with connect(server_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        parts = {"password": "", "port": 5432, **conninfo_to_dict(server_dsn), "dbname": name}
        yield "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**parts)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
