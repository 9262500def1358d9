import json
import subprocess
import sys
from importlib import import_module
from importlib.resources import files

import jsonschema  # type: ignore[import-untyped]
import pytest

from airflow_provider_taskq.provider_info import get_provider_info


def test_follows_airflows_schemas() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


@pytest.mark.parametrize("section", ["hooks", "operators", "sensors", "triggers"])
def test_every_module_it_names_is_there(section: str) -> None:
    for entry in get_provider_info()[section]:
        for module in entry["python-modules"]:
            import_module(module)


def test_the_connection_type_is_the_hooks() -> None:
    (connection_type,) = get_provider_info()["connection-types"]
    module, _, name = connection_type["hook-class-name"].rpartition(".")
    hook = getattr(import_module(module), name)
    assert connection_type["connection-type"] == hook.conn_type
    assert connection_type["hook-name"] == hook.hook_name


def test_imports_nothing_heavy() -> None:
    program = (
        "import sys; from airflow_provider_taskq.provider_info import get_provider_info; get_provider_info();"
        "print([name for name in ('airflow', 'psycopg', 'pyspark', 'sqlalchemy', 'fastapi') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"
