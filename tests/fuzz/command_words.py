"""Words of the command line, made from the tree of its commands: arguments and options with values of their types."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click
from hypothesis import strategies as st

from airflow_provider_taskq.cli._options import Topic
from airflow_provider_taskq.cli.program import standalone
from tests.fuzz.inputs import BOMBS, DIGITS, TEXTS, WHOLE, mostly
from tests.fuzz.situation import OWNER

Strategy = st.SearchStrategy[str]

# The next input needs the schema, which `uninstall` drops, and of which `install` and `upgrade` replace the functions
# and views. tests/cli/test_schema.py runs the three.
EXCLUDED: set[tuple[str, ...]] = {("install",), ("upgrade",), ("uninstall",)}
# Options that are always there, in front, so that no other word is their value: without them the command has no end.
ENDING: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("worker",): ("--drain",),
    ("watch",): ("--looks", "1"),
}

HOSTILE = st.one_of(TEXTS, WHOLE.map(str), DIGITS, st.sampled_from(["1e999", "nan", "9" * 5_000 + "d", "2026-13-01"]))
_DURATIONS = st.sampled_from(["1h", "90s", "PT5M", "0s", "3650d", "1ms"])
_OF_TYPE: Mapping[str, Strategy] = {  # by the name of a type
    "duration": _DURATIONS,
    "duration|none": st.one_of(_DURATIONS, st.just("none")),
    "moment": st.sampled_from(["2026-11-21T09:30", "2h", "now", "2026-W47", "9999-12-31", "1d/2026-01-01"]),
    "float": st.sampled_from(["0.5", "1", "2", "1e-300"]),
    "count|share": st.sampled_from(["0", "10", "5%", "0.05"]),
    "topic": st.just("work"),
    "filename": st.just("-"),
}
_NAMES = st.sampled_from(["a", "b", "later", "failed", "held", "1", "3", "6", "tick/hash/2100-01-01T00:00:00+00:00"])
HANDLER = "tests.cli.handlers:succeed"
_OF_NAME: Mapping[str, Strategy] = {
    "handler": st.sampled_from([HANDLER, "tests.cli.handlers:deliver", "tests.cli.handlers:x"]),
    "owner": st.just(OWNER),
    "prefix": st.just("tick"),
    "config_hash": st.just("hash"),
    "payload": st.sampled_from(['{"a": 1}', "1", "@-", "@/dev/null", "[" * 200, "1e400", '"\\ud800"']),
    "daily": st.sampled_from(["09:00", "23:59:59.5", "24:00", "12:00+02:00"]),
    "cron": st.sampled_from(["*/5 * * * *", "@hourly", "0 0 30 2 *", "0 2 29 3 *"]),
    "zone": st.sampled_from(["Europe/Berlin", "UTC", "../../etc/passwd"]),
    "depends_on": st.sampled_from(["work:a", "work:none", "none:a", "work"]),
    "error_group": st.just("it broke"),
    "topics": st.just("work"),
}
_BOUNDED: Mapping[str, Strategy] = {
    # A name that the resolver of this machine asks a server for would make the test wait for the network.
    "metrics_host": st.sampled_from(["127.0.0.1", "::1", "a" * 70, "é" * 70, "a" * 10_000, "a\x00b", "\ud800", " "]),
    "threads": st.one_of(st.integers(-1, 4).map(str), TEXTS),  # a thread has a connection, and the server 100 of them
    "patience": st.one_of(st.sampled_from(["0s", "10ms", "1e999", "-1s", "9" * 400 + "d"]), st.sampled_from(BOMBS)),
    # Each hour of ten years is a tick that the command would install.
    "ahead": st.one_of(st.sampled_from(["1h", "90s", "2h", "0s", "-1h", "none", "3651d", "9" * 400 + "d"]), TEXTS),
    "looks": st.one_of(st.integers(-1, 1).map(str), TEXTS),
}


@dataclass(frozen=True, slots=True)
class Words:
    """One use of the command line: the command, and all words behind `taskq`."""

    command: tuple[str, ...]
    words: list[str]


def all_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command and subcommand with its words, except for those that would end the test."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        own = (*path, name)
        if command is None or own in EXCLUDED:
            continue
        yield own, command
        if isinstance(command, click.Group):
            yield from all_commands(command, own)


def uses_with(value: str, kind: str | None = None) -> Iterator[Words]:
    """Yield for each argument and option of a kind, of each command, one use in which it has this value."""
    for path, command in all_commands(standalone()):
        for param in command.params:
            if kind in (None, param.type.name) and not (isinstance(param, click.Option) and param.is_flag):
                words = [_least_words(each, value if each is param else None) for each in command.params]
                yield Words(path, [*path, *ENDING.get(path, ()), *_joined(words)])


def _least_words(param: click.Parameter, value: str | None) -> list[str]:
    """The words of a parameter with a value; without one, those that a command cannot do without."""
    if value is None and not param.required:
        return []
    if value is None:
        choices = param.type.choices if isinstance(param.type, click.Choice) else ()
        fixed = (
            "work" if isinstance(param.type, Topic) else {"handler": HANDLER, "owner": OWNER}.get(param.name or "", "1")
        )
        value = str(next(iter(choices), fixed))
    return [param.opts[0], value] if isinstance(param, click.Option) else [value]


def values_of(param: click.Parameter, texts: Mapping[str, Strategy]) -> Strategy:
    """Values of an option or argument: mostly one of its type, seldom one that is hostile."""
    name = param.name or ""
    if name in _BOUNDED:
        return _BOUNDED[name]
    kind = param.type
    if name in (named := {**_OF_NAME, **texts}):
        valid = named[name]
    elif isinstance(kind, click.Choice):
        valid = st.sampled_from([str(choice) for choice in kind.choices])
    elif isinstance(kind, click.IntRange):
        least, most = int(kind.min or 0), int(kind.max or 2**63)
        valid = st.integers(max(least, -100), min(most, 100)).map(str)
    else:
        valid = _OF_TYPE.get(kind.name, _NAMES)
    return mostly(valid, HOSTILE, 6)


def words_of(path: tuple[str, ...], command: click.Command, texts: Mapping[str, Strategy]) -> st.SearchStrategy[Words]:
    """Uses of a command: its arguments and required options, up to three other options, and seldom another word."""
    arguments: list[st.SearchStrategy[list[str]]] = []
    options: list[st.SearchStrategy[list[str]]] = [st.just(["--json"]), st.just(["--help"])]
    for param in command.params:
        values = values_of(param, texts)
        if isinstance(param, click.Argument):
            arguments.append(st.lists(values, max_size=2) if param.nargs == -1 else values.map(lambda value: [value]))
        elif isinstance(param, click.Option):
            option = _option_words(param, values)
            (arguments if param.required else options).append(option)
    others = st.lists(st.one_of(options), max_size=3).map(_joined)
    further = mostly(st.just([]), st.lists(HOSTILE, max_size=1), 7)
    parts = st.tuples(st.tuples(*arguments).map(_joined), others, further).map(_joined)
    return parts.map(lambda words: Words(path, [*path, *ENDING.get(path, ()), *map(_as_argument, words)]))


def _as_argument(word: str) -> str:
    """The word as a program gets it from the system: from bytes, none of them NUL, and maybe not of UTF-8."""
    return os.fsdecode(word.encode("utf-8", "surrogatepass").replace(b"\x00", b""))


def _option_words(option: click.Option, values: Strategy) -> st.SearchStrategy[list[str]]:
    names = st.sampled_from([*option.opts, *option.secondary_opts])
    return names.map(lambda name: [name]) if option.is_flag else st.tuples(names, values).map(list)


def _joined(parts: list[list[str]] | tuple[list[str], ...]) -> list[str]:
    return [word for part in parts for word in part]


def all_words(texts: Mapping[str, Strategy]) -> tuple[set[tuple[str, ...]], st.SearchStrategy[Words]]:
    """Return the commands, and uses of them.

    :param texts: valid values by the name of the option or argument.
    """
    commands = dict(all_commands(standalone()))
    return set(commands), st.one_of([words_of(path, command, texts) for path, command in commands.items()])
