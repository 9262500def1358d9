"""`taskq`, also as `python -m airflow_provider_taskq.cli`."""

import sys
from importlib.util import find_spec


def main() -> None:
    """Run `taskq` and exit with 0, 1 or 2."""
    for module in ("click", "rich"):
        if find_spec(module) is None:
            sys.exit(f"taskq: the command line needs {module}: pip install click rich")
    from airflow_provider_taskq.cli._session import Session
    from airflow_provider_taskq.cli.program import standalone

    standalone().main(prog_name="taskq", obj=Session(), auto_envvar_prefix="TASKQ")


if __name__ == "__main__":
    main()
