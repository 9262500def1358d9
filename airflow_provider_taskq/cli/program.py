"""The program: its commands by name, each in a module that is imported when the command is used."""

import copy
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click
from click.shell_completion import get_completion_class

from airflow_provider_taskq import __version__
from airflow_provider_taskq.cli._errors import refusals_as_sentences
from airflow_provider_taskq.cli._options import CommandGroup, checked
from airflow_provider_taskq.cli._session import Session

_HOW = {
    "bash": 'eval "$(taskq completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(taskq completion zsh)" in ~/.zshrc',
    "fish": "taskq completion fish > ~/.config/fish/completions/taskq.fish",
}


@click.command(
    help="Print the completion of a shell for `taskq`.\n\n\b\n"
    + "\n".join(f"{shell}: {how}" for shell, how in _HOW.items())
)
@click.argument("shell", type=click.Choice(list(_HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Prints it."""
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"click {click.__version__} has no completion for {shell}")
    click.echo(found(ctx.find_root().command, {}, "taskq", "_TASKQ_COMPLETE").source())


# Verb: module, and what it does in a line.
SECTIONS = {
    "Look": {
        "topics": ("topics", "List the topics; create, alter, show or drop one."),
        "ls": ("tasks", "List tasks of a topic."),
        "show": ("tasks", "Show one task and what happened to it."),
        "why": ("tasks", "Say why a task is not running."),
        "owners": ("owners", "List who holds tasks; purge names that nobody uses."),
        "ticks": ("ticks", "List recurring tasks; install or uninstall them."),
        "stats": ("stats", "Count tasks by state, and what ended lately."),
        "errors": ("stats", "Group the failures of a topic by error."),
        "health": ("health", "Say what slows or threatens the queue."),
        "watch": ("watch", "Watch the topics live."),
    },
    "Act": {
        "push": ("push", "Push tasks: from arguments, a file or stdin."),
        "offer": ("push", "Offer tasks: at most one waiting task per identifier."),
        "drop": ("push", "Remove what waits under an identifier."),
        "retry": ("actions", "Start ended tasks anew."),
        "reassign": ("actions", "Give ended tasks another result."),
        "run-now": ("actions", "Make tasks that wait due now."),
        "priority": ("actions", "Set the priority of tasks that wait."),
        "cancel": ("actions", "End tasks that wait without running them."),
        "release": ("owners", "Take the tasks of an owner away, and hand them out again."),
        "pause": ("topics", "Let topics hand out nothing."),
        "resume": ("topics", "Let paused topics hand out tasks again."),
        "expire": ("owners", "Take back what is held under lapsed leases."),
        "purge": ("actions", "Remove tasks for good."),
        "worker": ("worker", "Handle tasks with a Python function."),
    },
    "The schema taskq": {
        "install": ("schema", "Create the schema, or upgrade it."),
        "upgrade": ("schema", "Upgrade the schema where it is there."),
        "verify": ("schema", "Tell whether the schema is this release's."),
        "uninstall": ("schema", "Drop the schema with everything in it."),
        "sql": ("schema", "Print the DDL, for a DBA to run."),
        "access": ("access", "Grant roles access to the queue, revoke it, list it."),
    },
    "Shell": {"completion": ("program", "Print the completion of a shell.")},
}
VERBS = {verb: place for section in SECTIONS.values() for verb, place in section.items()}


class Program(CommandGroup):
    """All verbs; `naming` is the option that says which database."""

    def __init__(self, naming: click.Option, description: str) -> None:
        super().__init__(
            name="taskq",
            help=description,
            params=[naming, json_option(), _version_option()],
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self.naming = naming

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """The verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of a verb, which takes `--json` and the database as the program does."""
        if cmd_name not in VERBS:
            return None
        found = getattr(import_module(f"airflow_provider_taskq.cli.{VERBS[cmd_name][0]}"), cmd_name.replace("-", "_"))
        return found if cmd_name == "completion" else self._with_common_options(found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes the verbs by section, without importing one."""
        for section, verbs in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(verb, does) for verb, (_, does) in verbs.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb; what the queue refuses becomes a sentence on stderr and exit code 1."""
        with refusals_as_sentences(ctx.ensure_object(Session)):
            return super().invoke(ctx)

    def _with_common_options(self, command: click.Command) -> click.Command:
        """A copy of a command that takes the options of all, subcommands included."""
        completed = copy.copy(command)
        completed.params = [*map(checked, command.params), self.naming, json_option()]
        if isinstance(completed, click.Group):
            completed.commands = {name: self._with_common_options(sub) for name, sub in completed.commands.items()}
        return completed


def standalone() -> Program:
    """`taskq`: on the database of a DSN or of libpq's environment."""
    naming = common_option(
        ["--dsn"],
        _set_name,
        metavar="DSN",
        allow_from_autoenv=False,
        help="The database, without a password. Else TASKQ_DSN, TASKQ_DSN_FILE, or libpq's PGHOST, PGSERVICE, ...",
    )
    return Program(naming, "A durable work queue in PostgreSQL: look at it, act on it, keep its schema.")


def airflow_program() -> Program:
    """`airflow taskq`: on Airflow's connections."""
    naming = common_option(
        ["--conn-id"], _set_name, metavar="ID", help="The Airflow connection (taskq_default unless given)."
    )
    return Program(naming, "The work queue behind an Airflow connection: look at it, act on it, keep its schema.")


def json_option() -> click.Option:
    """`--json`."""
    return common_option(["--json"], _set_json, is_flag=True, help="Answer in JSON: one document.")


def common_option(names: list[str], callback: Callable[..., object], **settings: Any) -> click.Option:
    """An option of the program and of each verb, which the session keeps."""
    return click.Option(names, callback=callback, expose_value=False, **settings)


def _version_option() -> click.Option:
    """`--version`."""
    return common_option(["--version"], _show_version, is_flag=True, is_eager=True, help="Print the version.")


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"taskq {__version__}")
        ctx.exit()


def _set_name(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).name = value


def _set_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Session).json = True
