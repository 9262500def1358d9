"""Asking a person before something is destroyed, or done to many."""

import sys

import click

from airflow_provider_taskq.cli.text import plain


class NobodyToAsk(click.ClickException):
    """A person has to agree, and there is none: a matter of usage, as `--yes` is missing."""

    exit_code = 2


def ask(sentence: str, *, yes: bool) -> None:
    """Returns once a person agrees, or has agreed by `--yes`; where nobody can be asked, `--yes` is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NobodyToAsk(f"{plain(sentence)} Nobody can be asked here: add --yes if it is meant.")
    click.confirm(f"{plain(sentence)} Go on?", abort=True, err=True)


def plural(count: int, word: str, many: str | None = None) -> str:
    """1 task, 2,000 tasks."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"
