"""`taskq`, also as `python -m airflow_provider_taskq.cli`."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Run `taskq` and exit with 0, 1 or 2."""
    _open_closed_streams()
    for module in ("click", "rich"):
        if find_spec(module) is None:
            sys.exit(f"taskq: the command line needs {module}: pip install click rich")
    from airflow_provider_taskq.cli._session import Session
    from airflow_provider_taskq.cli.program import standalone

    standalone().main(prog_name="taskq", obj=Session(), auto_envvar_prefix="TASKQ")


def _open_closed_streams() -> None:
    """Open the standard streams that a caller has closed (`taskq stats >&-`) on the null device.

    Otherwise Python has None in their place, and the connection to the database may get the number of one of them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  until the process ends


if __name__ == "__main__":
    main()
