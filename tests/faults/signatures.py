"""Signatures of the public functions: those of the database, and those of the last release in signatures.txt."""

from pathlib import Path
from typing import NamedTuple, Self

import psycopg

FILE = Path(__file__).with_name("signatures.txt")
# A row is the name, the parameters, how many of them have no default, and the result: its columns, or one type.
# The columns of `newest` may change with any release.
QUERY = """
SELECT p.proname,
       ARRAY(SELECT p.proargnames[u.place] || ' ' || format_type(u.type, NULL)
             FROM unnest(p.proargtypes) WITH ORDINALITY AS u (type, place) ORDER BY u.place),
       p.pronargs - p.pronargdefaults,
       CASE WHEN p.proallargtypes IS NOT NULL
            THEN ARRAY(SELECT p.proargnames[u.place] || ' ' || format_type(u.type, NULL)
                       FROM unnest(p.proallargtypes) WITH ORDINALITY AS u (type, place)
                       WHERE p.proargmodes[u.place] IN ('o', 't') ORDER BY u.place)
            WHEN t.typrelid <> 0 AND p.proname <> 'newest'
            THEN ARRAY(SELECT a.attname || ' ' || format_type(a.atttypid, NULL) FROM pg_attribute a
                       WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
            ELSE ARRAY[CASE WHEN p.proretset THEN 'SETOF ' ELSE '' END || format_type(p.prorettype, NULL)] END
FROM pg_proc p JOIN pg_type t ON t.oid = p.prorettype WHERE p.pronamespace = 'taskq'::regnamespace
ORDER BY p.proname, p.oid::regprocedure::text
"""


class Signature(NamedTuple):
    """What callers of a public function rely on."""

    name: str
    parameters: tuple[str, ...]
    required: int
    result: tuple[str, ...]

    @classmethod
    def read(cls, line: str) -> Self:
        """Reads a line of the file: name | parameters | further parameters, with defaults | result."""
        name, required, optional, result = ([part for part in field.split(", ") if part] for field in line.split(" | "))
        return cls(name[0], (*required, *optional), len(required), tuple(result))

    def line(self) -> str:
        """The line of the file."""
        parts = (self.parameters[: self.required], self.parameters[self.required :], self.result)
        return " | ".join((self.name, *(", ".join(part) for part in parts)))

    def serves(self, earlier: "Signature") -> bool:
        """Whether every call of the earlier function still works, by position and by name, and finds its columns."""
        return (
            self.name == earlier.name
            and self.parameters[: len(earlier.parameters)] == earlier.parameters
            and self.required <= earlier.required
            and self.result[: len(earlier.result)] == earlier.result
        )


def of_database(conn: psycopg.Connection) -> list[Signature]:
    """The signatures of all public functions of a database."""
    conn.execute("SET search_path = pg_catalog")  # so that each name of a type has its schema
    rows = conn.execute(QUERY.encode()).fetchall()
    return [Signature(name, tuple(given), required, tuple(result)) for name, given, required, result in rows]


def of_last_release() -> list[Signature]:
    """The signatures of the file."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [Signature.read(line) for line in lines if not line.startswith("#")]


def write(signatures: list[Signature]) -> None:
    """Writes the file, below its comment."""
    comment = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    FILE.write_text("\n".join([*comment, *(each.line() for each in signatures)]) + "\n", encoding="utf-8")
