"""Airflow in the tests of the documents."""

from tests.airflow.conftest import connection_json  # it sets Airflow's home before the first import

__all__ = ["connection_json"]
