"""How the demo's flights have to end, counted from the same files by pandas alone."""

import pandas as pd

from airflow_provider_taskq.queue import State
from demo.flights import data_folder


def expected(limit: int | None = None) -> dict[State, int]:
    """Flights by state: a missing or unknown aircraft before missing weather before a cancellation."""
    folder = data_folder()
    flights = pd.read_csv(folder / "flights.csv.zip", nrows=limit)
    planes = pd.read_csv(folder / "planes.csv")
    weather = pd.read_csv(folder / "weather.csv")
    known = flights["tailnum"].isin(planes["tailnum"])
    hours = set(zip(weather["origin"], weather["time_hour"], strict=True))
    loaded = pd.Series([hour in hours for hour in zip(flights["origin"], flights["time_hour"], strict=True)])
    flown = flights["dep_time"].notna()
    counts = {
        State.FAILED: int((~known).sum()),
        State.SUSPENDED: int((known & ~loaded).sum()),
        State.FILTERED: int((known & loaded & ~flown).sum()),
        State.SUCCEEDED: int((known & loaded & flown).sum()),
    }
    return {state: count for state, count in counts.items() if count}
