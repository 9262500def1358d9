"""The names that users import from airflow_provider_taskq.worker."""

import inspect

import pytest

from airflow_provider_taskq import worker

pytestmark = pytest.mark.promise("The distributions contain what they need, and declare what they import")


@pytest.mark.parametrize("name", worker.__all__)
def test_every_exported_name_can_be_imported(name: str) -> None:
    assert not inspect.ismodule(getattr(worker, name)), "a submodule of the same name would hide it"
