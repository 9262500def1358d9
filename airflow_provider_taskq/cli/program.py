"""The program: its commands by name, each in a module that is imported when the command is used.

`taskq --help` and the completion of a command's name import click and nothing else.
"""

import copy
from importlib import import_module
from typing import Any

import click

from airflow_provider_taskq import __version__
from airflow_provider_taskq.cli._options import CommandGroup
from airflow_provider_taskq.cli._session import Session

# Command: its module, and its line in the help.
SECTIONS = {
    "Look": {
        "topics": ("topics", "List the topics; create, alter, show or drop one."),
        "ls": ("tasks", "List tasks of a topic."),
        "show": ("tasks", "Show one task and its history."),
        "why": ("tasks", "Say why a task is not running."),
        "owners": ("owners", "List the owners that hold tasks; purge unused names."),
        "ticks": ("ticks", "List recurring tasks; install or uninstall them."),
        "stats": ("stats", "Count tasks by state, and those that ended lately."),
        "errors": ("stats", "Group the failures of a topic by error."),
        "health": ("health", "List what slows or threatens the queue."),
        "doctor": ("doctor", "Check the installation and the database."),
    },
    "Act": {
        "push": ("push", "Push tasks: from arguments, a file or stdin."),
        "offer": ("push", "Offer tasks: at most one waiting task per identifier."),
        "drop": ("push", "Drop the waiting task of an identifier."),
        "retry": ("actions", "Retry ended tasks."),
        "reassign": ("actions", "Give ended tasks another result."),
        "run-now": ("actions", "Make waiting tasks due now."),
        "priority": ("actions", "Set the priority of waiting tasks."),
        "cancel": ("actions", "End waiting tasks without running them."),
        "release": ("owners", "End the lease of an owner and hand out its tasks again."),
        "pause": ("topics", "Pause topics: they hand out no task."),
        "resume": ("topics", "Resume paused topics."),
        "expire": ("owners", "Take back the tasks of owners whose lease has lapsed."),
        "maintain": ("owners", "Carry out upkeep: expire leases, purge by the retention of each topic."),
        "purge": ("actions", "Remove tasks for good."),
        "worker": ("worker", "Handle tasks with a Python function."),
    },
    "The schema taskq": {
        "install": ("schema", "Create the schema, or upgrade it."),
        "upgrade": ("schema", "Upgrade an existing schema."),
        "verify": ("schema", "Check whether the schema matches this release."),
        "uninstall": ("schema", "Drop the schema with everything in it."),
        "sql": ("schema", "Print the DDL, for a DBA to run."),
        "access": ("access", "Grant roles access to the queue, revoke it, list it."),
    },
    "Shell": {"completion": ("program", "Print the completion of a shell.")},
}
VERBS = {verb: place for section in SECTIONS.values() for verb, place in section.items()}
SYNONYMS = {
    **dict.fromkeys(("delete", "remove", "rm", "clear"), "purge"),
    **dict.fromkeys(("list", "tasks", "find", "search"), "ls"),
    **dict.fromkeys(("get", "task", "describe", "inspect"), "show"),
    **dict.fromkeys(("revive", "rerun", "redo", "reset", "requeue"), "retry"),
    **dict.fromkeys(("enqueue", "add", "submit", "send"), "push"),
    **dict.fromkeys(("upkeep", "maintenance", "vacuum"), "maintain"),
    **dict.fromkeys(("abort", "kill", "skip"), "cancel"),
    **dict.fromkeys(("unpause", "continue"), "resume"),
    **dict.fromkeys(("stop", "hold"), "pause"),
    **dict.fromkeys(("create", "alter", "queues", "monitor", "top", "watch"), "topics"),
    **dict.fromkeys(("status", "statistics", "count"), "stats"),
    **dict.fromkeys(("failures", "failed"), "errors"),
    **dict.fromkeys(("check", "diagnose"), "doctor"),
    **dict.fromkeys(("workers", "leases", "holders"), "owners"),
    **dict.fromkeys(("schedule", "schedules", "cron"), "ticks"),
    **dict.fromkeys(("work", "consume", "run"), "worker"),
    **dict.fromkeys(("migrate", "update"), "upgrade"),
    **dict.fromkeys(("init", "setup"), "install"),
    **dict.fromkeys(("ddl", "script"), "sql"),
}


def _set_database(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).name = value


def _set_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Session).json = True


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from airflow_provider_taskq.cli._distributions import mixed_installation

        click.echo(f"taskq {__version__}")
        if problem := mixed_installation():
            click.echo(f"Warning: {problem}", err=True)
        ctx.exit()


def _airflow_only(fact: str) -> str:
    """Return the message about a use that needs Airflow, with what to do."""
    from airflow_provider_taskq.cli._distributions import CORE, FULL, without_airflow

    needed = f" They need {FULL}, and this is {CORE}, which has no Airflow." if without_airflow() else ""
    return f"{fact}{needed} Name the database of `taskq` by --dsn or TASKQ_DSN."


def _refuse_conn_id(_: click.Context, __: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(_airflow_only("--conn-id is for the commands `airflow taskq ...`."))


_JSON = click.Option(
    ["--json"], callback=_set_json, expose_value=False, is_flag=True, help="Answer with one JSON document."
)
_VERSION = click.Option(
    ["--version"], callback=_show_version, expose_value=False, is_flag=True, is_eager=True, help="Print the version."
)


class Program(CommandGroup):
    """The group of all commands.

    :param database: the option that names the database.
    :param refused: an option of the other program. Its use is an error that explains how to name the database.
    """

    def __init__(self, database: click.Option, description: str, refused: click.Option | None = None) -> None:
        self.common = [database, _JSON, *([refused] if refused else [])]
        super().__init__(
            name="taskq",
            help=description,
            params=[*self.common, _VERSION],
            context_settings={"help_option_names": ["-h", "--help"]},
            synonyms=SYNONYMS,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a command. A word that PostgreSQL cannot store is a usage error."""
        if not ctx.resilient_parsing and any(
            "\x00" in word or any("\ud800" <= letter <= "\udfff" for letter in word) for word in args
        ):
            raise click.UsageError(
                "a word holds a NUL or bytes that are not UTF-8, which the database cannot store", ctx
            )
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return the names of the commands, in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command, and add `--json` and the option of the database."""
        if cmd_name not in VERBS:
            return None
        found = getattr(import_module(f"airflow_provider_taskq.cli.{VERBS[cmd_name][0]}"), cmd_name.replace("-", "_"))
        return found if cmd_name == "completion" else self._with_common_options(found)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the named command. Raise a UsageError for `taskq airflow`: `taskq` is a command of `airflow`."""
        if args[0].lower() == "airflow" and ctx.command_path == "taskq":
            raise click.UsageError(_airflow_only("The commands on Airflow's connections are `airflow taskq ...`."), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands by section, without importing their modules."""
        for section, verbs in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(verb, does) for verb, (_, does) in verbs.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Translate an error of the queue to a message on stderr and exit code 1."""
        from airflow_provider_taskq.cli._errors import translated_errors  # it imports psycopg, and `--help` does not

        with translated_errors(ctx.ensure_object(Session)):
            return super().invoke(ctx)

    def _with_common_options(self, command: click.Command) -> click.Command:
        """Return a copy of a command in which it and its subcommands have the common options."""
        completed = copy.copy(command)
        completed.params = [*command.params, *self.common]
        if isinstance(completed, click.Group):
            completed.commands = {name: self._with_common_options(sub) for name, sub in completed.commands.items()}
        return completed


def standalone() -> Program:
    """Build the program `taskq`, which finds the database in a DSN or in libpq's environment variables."""
    database = click.Option(
        ["--dsn"],
        callback=_set_database,
        expose_value=False,
        metavar="DSN",
        allow_from_autoenv=False,
        help="The database, without a password. Else TASKQ_DSN, TASKQ_DSN_FILE, or libpq's PGHOST, PGSERVICE, ...",
    )
    description = "A durable work queue in PostgreSQL: look at it, act on it, keep its schema."
    refused = click.Option(["--conn-id"], callback=_refuse_conn_id, expose_value=False, hidden=True)
    return Program(database, description, refused)


def airflow_program() -> Program:
    """Build the program `airflow taskq`, which finds the database in an Airflow connection."""
    database = click.Option(
        ["--conn-id"],
        callback=_set_database,
        expose_value=False,
        metavar="ID",
        help="The Airflow connection, by default taskq_default.",
    )
    return Program(database, "The work queue behind an Airflow connection: look at it, act on it, keep its schema.")


_COMPLETIONS = {
    "bash": 'eval "$(taskq completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(taskq completion zsh)" in ~/.zshrc',
    "fish": "taskq completion fish > ~/.config/fish/completions/taskq.fish",
}


@click.command(
    help="Print the completion of a shell for `taskq`.\n\n\b\n"
    + "\n".join(f"{shell}: {setup}" for shell, setup in _COMPLETIONS.items())
)
@click.argument("shell", type=click.Choice(list(_COMPLETIONS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"click {click.__version__} has no completion for {shell}")
    click.echo(found(ctx.find_root().command, {}, "taskq", "_TASKQ_COMPLETE").source())
