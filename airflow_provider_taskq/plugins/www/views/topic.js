/** One topic: counts, charts, consumers, policy and tasks. */
import { useActing } from "../actions/context.js";
import { Chart } from "../chart.js";
import { Fragment, h, Link, To, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { ActionButton, Facts, Loaded, Part, State, Title } from "../components.js";
import { Rows } from "../table.js";
import { atLeast, count, distance, duration, moment } from "../format.js";
import { Dags } from "./dags.js";
import { Errors } from "./errors.js";
import { InAirflow } from "./in_airflow.js";
import { TaskList } from "./tasks.js";

const COUNTS = [
  ["Ready", "ready", "ready"],
  ["Scheduled", "scheduled", "scheduled"],
  ["Retrying", "retrying", "retrying"],
  ["Blocked", "blocked", "blocked"],
  ["Paused", "paused_tasks", "paused"],
  ["Running", "running", "running"],
  ["Failed", "failed", "failed", "failed"],
  ["Suspended", "suspended", "suspended"],
  ["Expired", "expired", "expired", "failed"],
];

function StatusCount({ title, of, to, palette }) {
  const some = atLeast(of) > 0;
  const color = some && palette ? `${palette}.fg` : some ? "fg" : "fg.subtle";
  return h(
    UI.Box,
    {
      asChild: true,
      borderWidth: "1px",
      borderRadius: "md",
      px: 3,
      py: 2,
      minW: 0,
      _hover: { borderColor: "border.emphasized", bg: "bg.subtle" },
    },
    h(
      Link,
      { to, "aria-label": `${title}: ${count(of)}` },
      h(UI.Text, { fontSize: "xs", fontWeight: "semibold", color: "fg.muted" }, title),
      h(UI.Text, { fontSize: "xl", fontWeight: "semibold", fontVariantNumeric: "tabular-nums", color }, count(of)),
    ),
  );
}

function Figure({ title, children }) {
  return h(
    UI.Box,
    { borderWidth: "1px", borderRadius: "md", px: 3, py: 2, minW: 0 },
    h(UI.Text, { fontSize: "xs", fontWeight: "semibold", color: "fg.muted" }, title),
    h(UI.Text, { fontSize: "xl", fontWeight: "semibold", whiteSpace: "nowrap" }, children),
  );
}

function StatusCounts({ topic, place }) {
  const grid = { gridTemplateColumns: "repeat(auto-fit, minmax(min(45%, 7rem), 1fr))", gap: 2 };
  const here = { view: null, topic: topic.topic };
  const figure = ([title, name, status, palette]) =>
    h(StatusCount, { key: name, title, of: topic[name], palette, to: place.at({ ...here, status }) });
  return h(UI.Grid, grid, COUNTS.map(figure), h(Figure, { title: "Oldest due" }, duration(topic.oldest_seconds)));
}

function Consumers({ owners, asOf, place }) {
  if (!owners.length) return h(UI.Text, { fontSize: "sm", color: "fg.muted" }, "No owner holds a task of this topic.");
  const columns = [
    { title: "Owner", show: (row) => h(To, { to: place.at({ view: "owner", owner: row.owner }) }, row.owner) },
    { title: "Holds", number: true, show: (row) => count(row.held) },
    {
      title: "Lease",
      show: (row) =>
        h(
          "time",
          { dateTime: row.lease_until, title: moment(row.lease_until) },
          `${row.lapsed ? "lapsed" : "ends"} ${distance(row.lease_until, asOf)}`,
        ),
    },
    { title: "In Airflow", empty: (row) => !row.links, show: (row) => h(InAirflow, { links: row.links }) },
  ];
  return h(Rows, { label: "Consumers", rows: owners, keyOf: (row) => row.owner, columns, testid: "consumers" });
}

const DURATIONS = new Set(["base", "max_delay", "horizon", "max_elapsed", "ttl", "keep_succeeded", "keep_failed"]);

/** The fields of a policy in words; unknown ones are shown as they are. */
function Policy({ policy }) {
  const facts = Object.entries(policy).map(([name, value]) => {
    const words = name.replaceAll("_", " ");
    const absent = name.startsWith("keep_") ? "forever" : "none";
    const shown = value === null ? absent : DURATIONS.has(name) ? duration(value) : String(value);
    return [words.charAt(0).toUpperCase() + words.slice(1), shown];
  });
  const summary = h(
    UI.Box,
    { as: "summary", cursor: "pointer", fontSize: "sm", fontWeight: "semibold", mb: 2 },
    "Policy",
  );
  return h("details", null, summary, h(Facts, { facts }));
}

function Overview({ data, conn, place }) {
  const { topic, as_of: asOf } = data;
  const charts = { gridTemplateColumns: "repeat(auto-fit, minmax(min(100%, 22rem), 1fr))", gap: 3 };
  return h(
    UI.Stack,
    { gap: 3, minW: 0 },
    h(StatusCounts, { topic, place }),
    h(
      UI.Grid,
      charts,
      h(Chart, { title: "Last hour", bars: topic.hour, unit: 60, sampled: topic.sampled }),
      h(Chart, { title: "Last day", bars: topic.day, unit: 3600, sampled: topic.sampled }),
    ),
    h(Part, null, "DAGs"),
    h(Dags, { conn, topic: topic.topic }),
    h(Part, null, "Consumers"),
    h(Consumers, { owners: topic.owners, asOf, place }),
  );
}

/** Details below the tasks. */
function PolicyAndLinks({ topic, place }) {
  return h(
    UI.Stack,
    { gap: 3, mt: 4 },
    h(Policy, { policy: topic.policy }),
    h(
      UI.HStack,
      { gap: 4, fontSize: "sm" },
      h(To, { to: place.at({ view: "ticks", topic: topic.topic }) }, "Ticks of this topic"),
      h(To, { to: place.at({ view: "audit", topic: topic.topic }) }, "Audit of this topic"),
    ),
  );
}

function Buttons({ topic, paused, onDone }) {
  const { mayAct, act } = useActing();
  if (!mayAct || paused === undefined) return null; // the topic does not exist, or is not loaded yet
  const turn = paused ? "resume" : "pause";
  const target = { topic, onDone, subject: topic };
  return h(
    Fragment,
    null,
    h(ActionButton, { icon: "plus", onClick: () => act({ action: "push", ...target }) }, "Push a task"),
    h(
      ActionButton,
      { icon: paused ? "play" : "pause", onClick: () => act({ action: turn, ...target }) },
      paused ? "Resume" : "Pause",
    ),
  );
}

export function Topic({ conn, place, focus }) {
  const topic = useView(conn, "topic", { topic: place.topic });
  const paused = topic.data?.topic.paused;
  const badge = paused ? h(State, { name: "paused" }) : null;
  const aside = h(Buttons, { topic: place.topic, paused, onDone: topic.reload });
  return h(
    UI.Stack,
    { gap: 3, minW: 0 },
    h(Title, { focus, badge, aside }, place.topic),
    h(Loaded, { of: topic, rows: 5 }, (data) => h(Overview, { data, conn, place })),
    topic.data && atLeast(topic.data.topic.failed) ? h(Errors, { conn, place, topic: place.topic }) : null,
    topic.data ? h(Fragment, null, h(Part, null, "Tasks"), h(TaskList, { conn, place, topic: place.topic })) : null,
    topic.data ? h(PolicyAndLinks, { topic: topic.data.topic, place }) : null,
  );
}
