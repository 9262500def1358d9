"""`python -m bench [push] [drain] [claim] [designs]`: measures what is named, or the first three."""

import argparse
import os

from airflow_provider_taskq.demo.postgres import EmbeddedPostgres
from bench import claim, designs, drain, push
from bench.rig import Rig

SECTIONS = {"push": push.run, "drain": drain.run, "claim": claim.run, "designs": designs.run}
USUAL = ("push", "drain", "claim")


def main() -> None:
    """Runs the sections one after the other, each on databases of its own."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("section", nargs="*", choices=SECTIONS, default=USUAL)
    sections = parser.parse_args().section
    if given := os.environ.get("TASKQ_DSN"):
        _run(Rig(given), sections)
        return
    with EmbeddedPostgres() as server:
        _run(Rig(server.dsn), sections)


def _run(rig: Rig, sections: list[str]) -> None:
    for section in sections:
        SECTIONS[section](rig)


if __name__ == "__main__":
    main()
