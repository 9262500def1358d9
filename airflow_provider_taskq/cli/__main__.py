"""`taskq`, also as `python -m airflow_provider_taskq.cli`."""


def main() -> None:
    """Runs the command line of a person who has a DSN, and exits with 0, 1 or 2."""
    from airflow_provider_taskq.cli.program import standalone
    from airflow_provider_taskq.cli.session import Session

    standalone().main(prog_name="taskq", obj=Session(), auto_envvar_prefix="TASKQ")


if __name__ == "__main__":
    main()
