"""The peers under pressure: the program of each, the mode of its worker, and the table that readers count."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from bench.peers.specs import GRAPHILE, OBAN, PG_BOSS, PGMQ, PGQUEUER, PROCRASTINATE, TASKQ, Mode, Spec
from bench.worker import WORKER


@dataclass(frozen=True, slots=True)
class Contender:
    """A peer and the mode in which its worker runs: its best mode, waiting for jobs."""

    spec: Spec
    mode: Mode
    color: str  # of its line in the charts

    @property
    def table(self) -> str:
        """The table of its waiting jobs."""
        return self.spec.pending


LINEUP: Mapping[str, Contender] = MappingProxyType(
    {
        "taskq": Contender(
            replace(WORKER, name=TASKQ.name),
            {"size": 1_000, "workers": 2, "interval": 0.05, "notify": True},
            "#d6336c",
        ),
        "pgmq": Contender(PGMQ, {"size": 1_000, "end": "archive", "interval_ms": 10, "reconnect": True}, "#4c8bf5"),
        "graphile-worker": Contender(GRAPHILE, GRAPHILE.best, "#2b9a66"),
        "pg-boss": Contender(PG_BOSS, {"size": 1_000, "threads": 2, "pause": 0.05}, "#b8860b"),
        "pgqueuer": Contender(PGQUEUER, PGQUEUER.best, "#8a63d2"),
        "oban": Contender(OBAN, OBAN.best, "#0e9aa7"),
        "procrastinate": Contender(PROCRASTINATE, PROCRASTINATE.best, "#8c6d5a"),
    }
)
