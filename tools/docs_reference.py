"""Hook of MkDocs: parts of the reference, made from the sources of the package.

A page in docs/reference/ has the place of a part as a line `<!-- reference: NAME -->`. The sources are read or
imported; no database is needed. The Python API, the operators and the sensors come from mkdocstrings.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.program import SECTIONS, standalone
from airflow_provider_taskq.get_provider_info import get_provider_info
from airflow_provider_taskq.queue import errors
from airflow_provider_taskq.queue.metrics import METRICS

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

PACKAGE = Path(__file__).resolve().parent.parent / "airflow_provider_taskq"
SQL = PACKAGE / "queue" / "sql"
PLACE = re.compile(r"^<!-- reference: ([\w-]+) -->$", re.MULTILINE)

# The files of functions in the order of the page.
SUBJECTS = (
    *("api/topics", "api/producer", "change/push", "api/consumer", "change/decisions", "change/junctions"),
    *("api/owners", "api/reader", "report/status", "report/explain", "api/statistics", "api/operator"),
    *("api/schedules", "api/log", "api/groups", "api/drain", "api/stages", "stage/stages", "api/page"),
    *("order/announcements", "base/values"),
)
KINDS = ("producer", "consumer", "reader", "operator")
OF_THE_OWNER = ("grant_access", "revoke_access")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace each place of a part by the part."""
    if page.file.src_uri.startswith("reference/"):
        return PLACE.sub(lambda place: PARTS[place[1]](), markdown)
    return markdown


# ---------------------------------------------------------------------------------------------------- SQL functions


@dataclass
class SqlFunction:
    """A public function with its signature and its comment."""

    name: str
    arguments: list[str]
    returns: str
    comment: str = ""


@dataclass
class SqlSubject:
    """The functions of one file."""

    title: str
    text: str
    functions: dict[str, list[SqlFunction]] = field(default_factory=lambda: defaultdict(list))


def sql_functions() -> str:
    """Return all public functions by subject, with signatures, comments and the kinds of roles that may call them."""
    granted = _granted()
    parts = []
    public = (file for file in SQL.rglob("*.sql") if "\nCREATE FUNCTION taskq." in file.read_text(encoding="utf-8"))
    files = {str(file.relative_to(SQL).with_suffix("")): file for file in public}
    if unordered := files.keys() ^ set(SUBJECTS):
        raise ValueError(f"SUBJECTS of {__file__} and the files of functions differ: {', '.join(unordered)}")
    for file in (files[subject] for subject in SUBJECTS):
        subject = _read_subject(file.read_text(encoding="utf-8"))
        parts += [f"## {subject.title}", subject.text]
        for name, overloads in subject.functions.items():
            parts.append(f"### {name}")
            for function in overloads:
                parts += [f"```sql\n{_signature(function)}\n```", _prose(function.comment, function.arguments)]
            parts.append(_callers(name, granted[name]))
    return "\n\n".join(parts)


def sql_views() -> str:
    """Return the views and tables of the schema `taskq` with their comments."""
    rows = []
    for file in sorted(SQL.rglob("*.sql")):
        text = file.read_text(encoding="utf-8")
        for kind, name, comment in re.findall(r"COMMENT ON (VIEW|TABLE) taskq\.(\w+) IS\s+'((?:[^']|'')*)'", text):
            rows.append((f"`{name}`", kind.lower(), _prose(comment.replace("''", "'"))))
    return _table(("name", "kind", "content"), sorted(rows))


def _read_subject(text: str) -> SqlSubject:
    """Read a file of functions: `-- Title: sentence ...`, then functions, each followed by its comment."""
    head = " ".join(line[3:] for line in text.partition("\n\n")[0].partition("\n--\n")[0].splitlines())
    title, _, sentence = head.partition(": ")
    subject = SqlSubject(title, _prose(sentence[:1].upper() + sentence[1:]))
    for found in re.finditer(r"^CREATE FUNCTION taskq\.(\w+)\(", text, re.MULTILINE):
        end = _closing(text, found.end())
        given = [" ".join(argument.split()) for argument in _split(text[found.end() : end])]
        results = [argument.removeprefix("OUT ") for argument in given if argument.startswith("OUT ")]
        returns = re.match(r"\)\s*RETURNS\s+(TABLE\s*\(.*?\)|.+?)\s+LANGUAGE\b", text[end:], re.DOTALL)
        subject.functions[found[1]].append(
            SqlFunction(
                found[1],
                [argument for argument in given if not argument.startswith("OUT ")],
                " ".join(returns[1].split()) if returns else f"({', '.join(results)})",
            )
        )
    for name, types, comment in re.findall(
        r"^COMMENT ON FUNCTION taskq\.(\w+)(?:\(([^)]*)\))? IS\s+'((?:[^']|'')*)'", text, re.MULTILINE
    ):
        _overload(subject.functions[name], types).comment = comment.replace("''", "'")
    missing = [name for name, found in subject.functions.items() if not all(function.comment for function in found)]
    if missing:
        raise ValueError(f"functions without a comment: {', '.join(missing)}")
    return subject


def _closing(text: str, start: int) -> int:
    """Return the place of the parenthesis that closes the one before `start`."""
    depth, quoted = 1, False
    for place in range(start, len(text)):
        letter = text[place]
        quoted ^= letter == "'"
        depth += 0 if quoted else (letter == "(") - (letter == ")")
        if not depth:
            return place
    raise ValueError("a parenthesis is not closed")


def _split(arguments: str) -> Iterator[str]:
    """Yield the arguments between commas that are not in parentheses or quotes."""
    depth, quoted, begin = 0, False, 0
    for place, letter in enumerate(arguments):
        quoted ^= letter == "'"
        depth += 0 if quoted else (letter in "([") - (letter in ")]")
        if letter == "," and not depth and not quoted:
            yield arguments[begin:place]
            begin = place + 1
    if arguments[begin:].strip():
        yield arguments[begin:]


def _overload(functions: list[SqlFunction], types: str) -> SqlFunction:
    """Return the function that a comment names, by its types if several have the name."""
    if len(functions) == 1:
        return functions[0]
    wanted = [" ".join(each.split()) for each in _split(types)]
    for function in functions:
        if [re.sub(r" DEFAULT .*", "", argument).partition(" ")[2] for argument in function.arguments] == wanted:
            return function
    raise ValueError(f"no function {functions[0].name}({types})")


def _signature(function: SqlFunction) -> str:
    line = f"taskq.{function.name}({', '.join(function.arguments)}) RETURNS {function.returns}"
    if len(line) <= 100 or not function.arguments:
        return line
    arguments = ",\n".join(f"    {argument}" for argument in function.arguments)
    return f"taskq.{function.name}(\n{arguments}\n) RETURNS {function.returns}"


def _granted() -> dict[str, dict[str, bool]]:
    """Return the kinds of roles that may call each function, and whether a limited role may: `taskq.privileges`."""
    text = (SQL / "base" / "roles.sql").read_text(encoding="utf-8")
    granted: dict[str, dict[str, bool]] = defaultdict(dict)
    for kinds, by_topic, names in re.findall(r"\('([\w ]+)', (true|false),\s+'([\w\s]+)'\)", text):
        for name, kind in product(names.split(), kinds.split()):
            granted[name][kind] = by_topic == "true"
    return granted


def _callers(name: str, kinds: dict[str, bool]) -> str:
    """Return the sentence on the roles that may call a function. An operator may call every function but two."""
    if name in OF_THE_OWNER:
        return "*Roles:* the owner of the schema."
    text = f"*Roles:* {_codes(kind for kind in KINDS if kind in kinds or kind == 'operator')}."
    limited = _codes(kind for kind in KINDS if kinds.get(kind))
    link = "[access to some topics only](../production/roles.md#access-to-some-topics-only)"
    return f"{text} Also with {link}: {limited}." if limited else text


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _prose(comment: str, arguments: Iterable[str] = ()) -> str:
    """Return a comment as Markdown: calls and names as code, codes of errors as links."""
    text = re.sub(
        r"(taskq\.\w+\((?:[^()]|\([^()]*\))*\)|\btaskq(?:_internal)?\.\w+)", r"`\1`", " ".join(comment.split())
    )
    parts = text.split("`")  # every second part is code
    for name in (argument.partition(" ")[0] for argument in arguments):
        marked = rf"(?<![\w.]){name}\b" + ("" if "_" in name else r"(?=:)")
        parts = "`".join(
            [re.sub(marked, f"`{name}`", part) if n % 2 == 0 else part for n, part in enumerate(parts)]
        ).split("`")
    text = "`".join(parts)
    return re.sub(r"\b(TQ\d{3})\b", lambda code: f"[{code[1]}](errors.md#{_class_of(code[1]).lower()})", text)


def _class_of(code: str) -> str:
    return errors.SQLSTATES[code].__name__


# ---------------------------------------------------------------------------------------------------- command line


def command_line() -> str:
    """Return all commands with their arguments and options."""
    program = standalone()
    context = click.Context(program, info_name="taskq", obj=Session(), auto_envvar_prefix="TASKQ")
    parts = []
    for section, verbs in SECTIONS.items():
        parts.append(f"### {section}")
        for verb in verbs:
            command = program.get_command(context, verb)
            if command:
                parts += _command(command, click.Context(command, info_name=verb, parent=context), depth=4)
    return "\n\n".join(parts)


def _command(command: click.Command, context: click.Context, depth: int) -> Iterator[str]:
    """Yield the parts of a command and of its subcommands."""
    path = context.command_path
    yield f"{'#' * depth} {path} {{ #command-{path.replace(' ', '-')} }}"
    yield f"```text\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```"
    yield _help_text(command.help or "")
    options = [given for given in command.params if isinstance(given, click.Option) and not given.hidden]
    if shown := [given for given in options if not {"--json", "--dsn"} & set(given.opts)]:
        yield _table(("option", "meaning"), [_option(given, context) for given in shown])
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _command(below, click.Context(below, info_name=name, parent=context), depth)


def _help_text(text: str) -> str:
    """Return the help of a command; a paragraph that click is not to wrap stays as it is."""
    paragraphs = textwrap.dedent(text).strip().split("\n\n")
    return "\n\n".join(
        f"```text\n{each.removeprefix(chr(8)).strip()}\n```" if each.startswith("\b") else " ".join(each.split())
        for each in paragraphs
    )


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    """Return the row of an option."""
    names, text = option.get_help_record(context) or ("", "")
    return _code(names), text.replace("|", "&#124;")


# ---------------------------------------------------------------------------------------------------- Airflow


def connection_fields() -> str:
    """Return the own fields of the connection type `taskq`."""
    (connection,) = get_provider_info()["connection-types"]
    rows = [
        (given["label"], f"`{name}`", _schema_type(given["schema"]), given["description"])
        for name, given in connection["conn-fields"].items()
    ]
    return _table(("field", "key in `extra`", "values", "meaning"), rows)


def _schema_type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    return ", ".join(kind for kind in schema["type"] if kind != "null")


def configuration() -> str:
    """Return the options of the section `[taskq]`."""
    parts = []
    for section, given in get_provider_info()["config"].items():
        for name, option in given["options"].items():
            variable = f"AIRFLOW__{section.upper()}__{name.upper()}"
            parts.append(f"## {name}\n\n{option['description']}")
            rows = [
                ("type", option["type"]),
                ("default", _code(str(option["default"])) if option["default"] is not None else "none"),
                ("example", _code(str(option["example"])) if option.get("example") else ""),
                ("environment variable", f"`{variable}`"),
                ("since", option["version_added"]),
            ]
            parts.append(_table(("", ""), [row for row in rows if row[1]]))
    return "\n\n".join(parts)


# ---------------------------------------------------------------------------------------------------- metrics, errors


def metrics() -> str:
    """Return the metrics that Airflow sends."""
    rows = []
    for metric in METRICS:
        if metric.airflow:
            kind = "timing" if metric.kind == "histogram" else metric.kind
            tags = ", ".join(label for label in metric.labels if label != "worker") or "none"
            rows.append((f"`{metric.airflow}`", kind, tags, metric.meaning))
    return _table(("metric", "kind", "tags", "meaning"), rows)


def worker_metrics() -> str:
    """Return the metrics that the endpoint of workers serves."""
    rows = [(f"`{each.prometheus}`", each.kind, ", ".join(each.labels), each.meaning) for each in METRICS]
    return _table(("metric", "kind", "labels", "meaning"), [row for row in rows if row[0] != "``"])


def error_classes() -> str:
    """Return the errors of the queue, with the SQLSTATE under which SQL raises them."""
    parts = []
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == errors.__name__:
            codes = _codes(code for code, raised in errors.SQLSTATES.items() if raised is kind)
            bases = _codes(base.__name__ for base in kind.__bases__)
            facts = f"SQLSTATE {codes}. Derived from {bases}." if codes else f"Derived from {bases}."
            parts += [f"## {kind.__name__}", inspect.getdoc(kind) or "", facts]
    return "\n\n".join(parts)


# ---------------------------------------------------------------------------------------------------- Markdown


def _code(text: str) -> str:
    """Return a text as code in a table."""
    return "<code>" + text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;") + "</code>"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(" ".join(cell.split()) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "sql-functions": sql_functions,
    "sql-views": sql_views,
    "command-line": command_line,
    "connection": connection_fields,
    "configuration": configuration,
    "metrics": metrics,
    "worker-metrics": worker_metrics,
    "errors": error_classes,
}
