"""The names that users import from airflow_provider_taskq.processing."""

import subprocess
import sys

import pytest

import airflow_provider_taskq.processing as processing


@pytest.mark.parametrize("name", processing.__all__)
def test_every_exported_name_can_be_imported(name: str) -> None:
    assert getattr(processing, name) is not None


@pytest.mark.parametrize("name", ["Batches", "Group", "Health", "Reader", "Readers", "Signal", "Ticker", "Worker"])
def test_what_runs_for_long_is_exported(name: str) -> None:
    assert name in processing.__all__


def test_importing_the_package_loads_neither_readers_nor_batches() -> None:
    code = (
        "import sys, airflow_provider_taskq.processing;"
        "print([name for name in sys.modules if name.startswith('airflow_provider_taskq.processing.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
