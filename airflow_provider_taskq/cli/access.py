"""taskq access: grant a database role access to the queue, revoke it, and list the grants."""

import click

from airflow_provider_taskq.cli._output import table
from airflow_provider_taskq.cli._session import Session

KINDS = ("producer", "consumer", "reader", "operator")
COLUMNS = ["role", "kind", "topic"]

topic_option = click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic; may be repeated."
)


@click.group(
    help="Grant database roles access to the queue, revoke it, and list the grants. For the owner of the schema."
)
def access() -> None:
    pass


@access.command(help="Grant ROLE access as KIND, to every topic or to those that --topic names. Grants add up.")
@click.argument("role")
@click.argument("kind", type=click.Choice(KINDS))
@topic_option
@click.pass_obj
def grant(session: Session, role: str, kind: str, topics: tuple[str, ...]) -> None:
    with session.transaction() as queue:
        queue.grant_access(role, kind, topics or None)
    session.answer(
        {"role": role, "kind": kind, "topics": list(topics) or None},
        f"Granted {role} access as {kind} to {_named(topics)}.",
    )


@access.command(
    help="Revoke all access of ROLE, only its access as KIND, or only that to the topics that --topic names."
)
@click.argument("role")
@click.argument("kind", type=click.Choice(KINDS), required=False)
@topic_option
@click.pass_obj
def revoke(session: Session, role: str, kind: str | None, topics: tuple[str, ...]) -> None:
    if topics and kind is None:
        raise click.UsageError("--topic needs a kind: taskq access revoke ROLE KIND --topic TOPIC")
    with session.transaction() as queue:
        queue.revoke_access(role, kind, topics or None)
    revoked = f"access as {kind} to {_named(topics)}" if kind else "all access"
    session.answer({"role": role, "kind": kind, "topics": list(topics) or None}, f"Revoked {revoked} from {role}.")


@access.command(name="list", help="List the roles with their grants.")
@click.pass_obj
def list_access(session: Session) -> None:
    with session.read_only() as queue:
        grants = queue.grants()
    rows = [(role, kind, topic or "every topic") for role, kind, topic in grants]
    documents = [grant._asdict() for grant in grants]
    session.answer({"grants": documents}, table(COLUMNS, rows) if rows else "No role was granted access.")


def _named(topics: tuple[str, ...]) -> str:
    return ", ".join(topics) if topics else "every topic"
