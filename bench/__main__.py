"""Measures what is named, each beside the limit of raw SQL; without a name push, drain and claim.

`singular`: the conditions beside polls without one. `topics`: by the number of topics and of their partitions.
`waits`: ten thousand of Airflow's deferred gates in one event loop. `gates`: 500 in a real Airflow.
`upkeep`: over minutes of churn, with long transactions in between (9 minutes). `designs`: the tables that
were compared before. `peers`: the other queues, which are installed when they are needed. `spark`: drains beside what
is written by hand, the modes alone, cores, memory (`--parts` picks some, `--tasks` is for the memory). `worker`: the
worker beside those of the peers for Python (`--rounds`, `--small`, `--cache` as for `peers`).
"""

import argparse
import os
from collections.abc import Callable
from functools import partial

from bench import claim, designs, drain, gates, push, singular, topics, upkeep, waits, worker
from bench.peers import compare
from bench.rig import Rig
from bench.spark import section as spark
from demo.postgres import EmbeddedPostgres

SECTIONS = {
    "push": push.run,
    "drain": drain.run,
    "claim": claim.run,
    "singular": singular.run,
    "topics": topics.run,
    "upkeep": upkeep.run,
    "waits": waits.run,
    "gates": gates.run,
    "designs": designs.run,
}
USUAL = ("push", "drain", "claim")


def main() -> None:
    """Runs the sections one after the other, each on databases of its own."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("section", nargs="*", choices=[*SECTIONS, "peers", "spark", "worker"], default=USUAL)
    compare.add_arguments(parser)
    spark.add_arguments(parser)
    options = parser.parse_args()
    if given := os.environ.get("TASKQ_DSN"):
        _run(Rig(given), options)
        return
    with EmbeddedPostgres() as server:
        _run(Rig(server.dsn), options)


def _run(rig: Rig, options: argparse.Namespace) -> None:
    sections: dict[str, Callable[[Rig], None]] = {
        **SECTIONS,
        "peers": partial(compare.run, options=options),
        "spark": partial(spark.run, options=options),
        "worker": partial(worker.run, options=options),
    }
    for section in options.section:
        sections[section](rig)


if __name__ == "__main__":
    main()
