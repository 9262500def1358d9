"""A database for the tables of the demonstration."""

import pytest


@pytest.fixture
def dsn(own_dsn: str) -> str:
    """A new database, as the demonstration installs the schema."""
    return own_dsn
