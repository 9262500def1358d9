"""mode=held and mode=complete alone, compared with plain SQL on the same rows, without any rules."""

import time
from collections.abc import Callable, Iterable
from functools import partial

from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import TaskQueue, connect
from bench.rig import Rig, in_turn, rates
from bench.spark.meter import cpu
from bench.spark.section import Scale
from bench.spark.sites import OWNER, TOPIC, Site, filled, held_source, session

CORES = 2
CHUNK = 1 << 20
ONE_TABLE = (
    "COPY (SELECT sequence, identifier, payload, reference, priority, created FROM taskq_internal.task) TO STDOUT"
)
BOTH_TABLES = (
    "COPY (SELECT t.sequence, t.identifier, t.payload, t.reference, l.attempt, l.redelivered, t.priority, t.created,"
    " l.available_at FROM taskq_internal.live l JOIN taskq_internal.task t USING (topic_id, sequence)"
    " WHERE l.holder IS NOT NULL ORDER BY t.sequence) TO STDOUT"
)
DONE = "CREATE TEMP TABLE done (id bigint, state text, message text) ON COMMIT DROP"
UPDATE = (
    "UPDATE status s SET state = d.state, message = d.message, finished = now() FROM done d"
    " WHERE d.id = s.id AND s.state = 'new'"
)

Mode = Callable[[SparkSession, str], None]


def run(rig: Rig, scale: Scale) -> None:
    """Measures both modes on copies of a database in which one owner holds all tasks."""
    with filled(rig, scale.flights, claimed=True) as site, session(rig, CORES) as spark:
        with site.copy() as dsn:
            reads: dict[str, Mode] = {
                "bare COPY out of one table": partial(_copied_out, ONE_TABLE),
                "bare COPY out, live and task joined": partial(_copied_out, BOTH_TABLES),
                "mode=held": _read,
            }
            measured = {name: partial(_timed, site, spark, dsn, work, scale, name) for name, work in reads.items()}
            figures = in_turn(measured, scale.rounds)
        rates(f"Spark: {scale.flights:,} held tasks read in local[2]", figures, "bare COPY out of one table")
        rows = _rows(scale.flights)
        writes: dict[str, Mode] = {"COPY in plus update": partial(_copied_in, rows), "mode=complete": _completed}
        measured = {name: partial(_on_a_copy, site, spark, work, scale, name) for name, work in writes.items()}
        rates(
            f"Spark: {scale.flights:,} decisions written in local[2]",
            in_turn(measured, scale.rounds),
            "COPY in plus update",
        )


def _copied_out(statement: str, _: SparkSession, dsn: str) -> None:
    with connect(dsn) as conn, conn.cursor().copy(statement.encode()) as copy:
        for _row in copy:
            pass


def _read(spark: SparkSession, dsn: str) -> None:
    """Reads all held tasks into Spark's sink `noop`, which drops them."""
    options = {"mode": "held", "owner": OWNER, "topic": TOPIC, "partitions": str(CORES)}
    frame = spark.read.format(held_source(spark, dsn)).options(**options).load()
    frame.write.format("noop").mode("overwrite").save()


def _copied_in(rows: Iterable[bytes], _: SparkSession, dsn: str) -> None:
    """Copies the same decisions into a temporary table in one session, and updates the status table from it."""
    with connect(dsn) as conn:
        conn.execute(DONE)
        with conn.cursor().copy("COPY done FROM STDIN") as copy:
            for chunk in rows:
                copy.write(chunk)
        conn.execute("ANALYZE done")
        conn.execute(UPDATE)


def _completed(spark: SparkSession, dsn: str) -> None:
    """Writes decisions made from a range: the sequences of a topic that one push filled have no gaps."""
    with connect(dsn) as conn:
        low, high = conn.execute("SELECT min(sequence), max(sequence) FROM taskq_internal.live").fetchall()[0]
    message = """concat('{"lost": ', id % 100, '}')"""
    decisions = spark.range(low, high + 1, 1, CORES).selectExpr(
        "id AS sequence", "'SUCCESS' AS result", f"{message} AS message"
    )
    options = {"mode": "complete", "owner": OWNER}
    decisions.write.format(held_source(spark, dsn)).mode("append").options(**options).save()


def _rows(count: int) -> list[bytes]:
    """The decisions in the text format of COPY, in chunks, made before the clock starts."""
    text = "".join(f'{number}\tSUCCESS\t{{"lost": {number % 100}}}\n' for number in range(1, count + 1)).encode()
    return [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]


def _on_a_copy(site: Site, spark: SparkSession, work: Mode, scale: Scale, name: str) -> float:
    """The rate of a write on its own copy of the database; fails if the write left tasks over."""
    with site.copy() as dsn:
        rate = _timed(site, spark, dsn, work, scale, name)
        with connect(dsn) as conn:
            live = sum(count.count for count in TaskQueue(conn).count(TOPIC)[TOPIC].values())
            left = conn.execute(
                "SELECT (SELECT count(*) FROM taskq_internal.live), (SELECT count(*) FROM status WHERE state = 'new')"
            )
            if 0 not in left.fetchall()[0] or live != scale.flights:
                raise RuntimeError(f"{name} has left tasks over")
    return rate


def _timed(site: Site, spark: SparkSession, dsn: str, work: Mode, scale: Scale, name: str) -> float:
    before, start = cpu(site.server_pid), time.perf_counter()
    work(spark, dsn)
    seconds = time.perf_counter() - start
    spent = cpu(site.server_pid).since(before)
    print(f"    {name:<36} {seconds:6.2f} s   {spent}", flush=True)
    return scale.flights / seconds
