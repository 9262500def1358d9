/** All topics at a glance. */
import { Spark } from "../chart.js";
import { h, Link, To, UI } from "../host.js";
import { useLive } from "../live.js";
import { Empty, Shown, State, Title } from "../parts.js";
import { Search } from "../search.js";
import { Pages, Rows } from "../table.js";
import { atLeast, count, duration } from "../words.js";

/** A count that leads to the tasks that it counts. */
function Counted({ of, to, palette }) {
  const some = atLeast(of) > 0;
  if (!some) return h(UI.Text, { as: "span", color: "fg.subtle" }, "0");
  const look = { color: palette ? `${palette}.fg` : "fg", fontWeight: palette ? "semibold" : "normal", textDecoration: "underline" };
  return h(UI.Box, { asChild: true, ...look, textDecorationColor: "border.emphasized", textUnderlineOffset: "3px" }, h(Link, { to }, count(of)));
}

function columns(place, throughput) {
  const tasks = (topic, filter) => place.at({ view: "tasks", topic, ...filter });
  const counted = (title, name, filter, palette) => ({
    title,
    number: true,
    empty: (row) => atLeast(row[name]) === 0,
    show: (row) => h(Counted, { of: row[name], to: tasks(row.topic, filter), palette }),
  });
  const lately = (row) => throughput?.topics[row.topic]?.hour;
  return [
    { title: "Topic", show: (row) => h(Name, { row, place }) },
    counted("Due", "due", { state: "READY" }),
    counted("Later", "later", { status: "scheduled" }),
    counted("Waiting", "waiting", { status: "waiting" }),
    counted("Held", "held", { state: "ACTIVE" }),
    counted("Failed", "failed", { state: "FAILED" }, "failed"),
    counted("Suspended", "suspended", { state: "SUSPENDED" }),
    counted("Expired", "expired", { state: "EXPIRED" }, "failed"),
    { title: "Oldest due", number: true, empty: (row) => row.oldest_seconds === null, show: (row) => duration(row.oldest_seconds) },
    { title: "Consumers", number: true, empty: (row) => !row.consumers, show: (row) => row.consumers ?? "–" },
    { title: "Last hour", width: "13rem", empty: (row) => !lately(row), show: (row) => h(Spark, { bars: lately(row) }) },
  ];
}

function Name({ row, place }) {
  const name = h(To, { to: place.at({ topic: row.topic }), fontWeight: "semibold" }, row.topic);
  return row.paused ? h(UI.HStack, { gap: 2, wrap: "wrap" }, name, h(State, { name: "paused" })) : name;
}

/** The list of topics, by name. */
export function Topics({ conn, place, focus }) {
  const topics = useLive(`${encodeURIComponent(conn.conn_id)}/topics`, { search: place.search, after: place.after });
  const throughput = useLive(`${encodeURIComponent(conn.conn_id)}/throughput`);
  const look = (search) => place.go({ search, after: null }, { ifHere: true });
  return h(
    UI.Stack,
    { gap: 3 },
    h(Title, { focus, aside: h(Search, { label: "Search topics", value: place.search, onSearch: look }) }, "Topics"),
    h(Shown, { of: topics }, ({ topics: rows, next }) => [
      rows.length
        ? h(Rows, { key: "rows", label: "Topics", testid: "topics", rows, keyOf: (row) => row.topic, columns: columns(place, throughput.data) })
        : h(None, { key: "none", search: place.search }),
      h(Pages, {
        key: "pages",
        first: place.after ? () => place.go({ after: null }) : null,
        next: next ? () => place.go({ after: next }) : null,
      }),
    ]),
  );
}

const None = ({ search }) =>
  search
    ? h(Empty, { title: "No topic has this in its name" }, "Search for a shorter part of it.")
    : h(Empty, { title: "No topic yet" }, "A topic is made by create_topic, by `taskq topics create`, or by the first push of an operator.");
