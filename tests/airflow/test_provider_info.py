import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import BaseOperatorLink
from airflow.sdk.bases.notifier import BaseNotifier

from airflow_provider_taskq.get_provider_info import get_provider_info

pytestmark = pytest.mark.promise("Hooks, operators and `airflow taskq` find the connections of Airflow")

INFO = get_provider_info()


def class_paths() -> Iterator[str]:
    """Return the paths of all named classes and functions."""
    yield from (entry["hook-class-name"] for entry in INFO["connection-types"])
    for section in ("queues", "notifications", "extra-links"):
        yield from INFO[section]
    for uris in INFO["asset-uris"]:
        yield from (value for key, value in uris.items() if key != "schemes")


def named(path: str) -> Any:
    """Import the object of a path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def test_follows_airflows_schemas() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


@pytest.mark.parametrize("section", ["hooks", "operators", "sensors", "triggers"])
def test_every_named_module_exists_and_has_the_public_classes(section: str) -> None:
    named_modules = {module for entry in INFO[section] for module in entry["python-modules"]}
    for module in named_modules:
        import_module(module)
    if section in {"operators", "sensors"}:
        package = import_module(f"airflow_provider_taskq.{section}")
        assert {getattr(package, name).__module__ for name in package.__all__} == named_modules


@pytest.mark.parametrize("path", list(class_paths()))
def test_every_named_class_and_function_exists(path: str) -> None:
    assert callable(named(path))


def test_links_and_notifiers_are_airflows() -> None:
    assert all(issubclass(named(path), BaseOperatorLink) for path in INFO["extra-links"])
    assert all(issubclass(named(path), BaseNotifier) for path in INFO["notifications"])


def test_airflow_finds_every_option_through_it() -> None:
    manager: Any = ProvidersManager()  # type: ignore[no-untyped-call]
    assert dict(manager.provider_configs)[INFO["package-name"]] == INFO["config"]


def test_the_connection_type_is_the_hooks() -> None:
    (connection_type,) = INFO["connection-types"]
    hook = named(connection_type["hook-class-name"])
    assert connection_type["connection-type"] == hook.conn_type
    assert connection_type["hook-name"] == hook.hook_name


def test_the_form_of_a_connection_has_a_field_for_each_option() -> None:
    """The fields are those that Airflow's API server returns for the form in the browser."""
    if not hasattr(ProvidersManager, "_load_ui_metadata"):
        pytest.skip("Airflow 3.1 takes the fields of a form from a hook that needs Flask")
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

    (form,) = [one for one in HookMetaService.hook_meta_data() if one.connection_type == "taskq"]
    fields = form.extra_fields or {}
    assert set(fields) == {"sslmode", "connect_timeout", "application_name", "listen"}
    assert fields["listen"]["schema"]["type"] == ["boolean", "null"]


def test_imports_nothing_heavy() -> None:
    program = (
        "import sys; from airflow_provider_taskq.get_provider_info import get_provider_info; get_provider_info();"
        "print([name for name in ('airflow', 'psycopg', 'pyspark', 'sqlalchemy', 'fastapi') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
