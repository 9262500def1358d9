"""A DSN as an argument: everybody on the machine can read it, so it may hold no password."""

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict

SECRETS = ("password", "sslpassword", "oauth_client_secret")


def without_password(dsn: str) -> str:
    """The DSN, unless it holds a password or cannot be read; the refusal quotes nothing of it."""
    try:
        found = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise click.UsageError("--dsn is no connection string: postgresql://user@host/database") from None
    if any(found.get(name) for name in SECRETS) or "@" in str(found.get("host")):
        raise click.UsageError(
            "--dsn holds a password, which everybody on this machine can read in the list of processes:"
            " leave it out, and put it into TASKQ_DSN, a file that TASKQ_DSN_FILE names, ~/.pgpass or a service file"
        )
    return dsn
