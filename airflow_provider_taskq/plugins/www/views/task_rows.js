/** Tasks as rows, the same in every view that lists them. */
import { Fragment, h, To, UI } from "../airflow_globals.js";
import { State } from "../components.js";
import { Rows } from "../table.js";
import { attemptTimes, distance, moment } from "../format.js";

/** The next or last moment of a task: its end, the end of its lease, its due time or its push. */
function Moment({ task, asOf }) {
  const [word, at] = task.completed
    ? ["ended", task.completed]
    : task.state === "ACTIVE"
    ? [Date.parse(task.lease_until) < Date.parse(asOf) ? "lease lapsed" : "lease ends", task.lease_until]
    : task.state === "READY" && task.status !== "blocked"
    ? ["due", task.available_at]
    : ["pushed", task.created];
  if (!at) return "–";
  const times = attemptTimes(task, task.state === "ACTIVE" ? "running for" : "ran");
  const shown = h("time", { dateTime: at, title: moment(at) }, `${word} ${distance(at, asOf)}`);
  return times ? h(Fragment, null, shown, h(UI.Box, { fontSize: "xs", color: "fg.muted" }, times)) : shown;
}

/** The owner of a task, with a link to its task instance. */
export function Holder({ name, place }) {
  return name ? h(To, { to: place.at({ view: "owner", owner: name }) }, name) : "–";
}

const CLAMPED = { lineClamp: 2, overflowWrap: "anywhere" };

function columns(place, asOf, topics, owners) {
  const link = (task, text) => h(To, { to: place.at({ topic: task.topic, sequence: task.sequence }) }, text);
  return [
    { title: "Task", width: "6rem", look: { fontWeight: "semibold" }, show: (task) => link(task, `#${task.sequence}`) },
    topics && { title: "Topic", show: (task) => h(To, { to: place.at({ topic: task.topic }) }, task.topic) },
    { title: "Identifier", look: CLAMPED, show: (task) => link(task, task.identifier) },
    { title: "Status", show: (task) => h(State, { name: task.status }) },
    { title: "Attempt", number: true, empty: (task) => !task.attempt, show: (task) => task.attempt },
    {
      title: "Pushed",
      show: (task) => h("time", { dateTime: task.created }, moment(task.created)),
      look: { whiteSpace: "nowrap" },
    },
    { title: "When", look: { whiteSpace: "nowrap" }, show: (task) => h(Moment, { task, asOf }) },
    owners &&
    {
      title: "Owner",
      look: CLAMPED,
      empty: (task) => !task.owner,
      show: (task) => h(Holder, { name: task.owner, place }),
    },
    {
      title: "Error",
      empty: (task) => !task.error_summary,
      look: { ...CLAMPED, color: "fg.muted", fontSize: "xs", fontFamily: "mono", maxW: "24rem" },
      show: (task) => task.error_summary ?? h(UI.Text, { as: "span", color: "fg.subtle" }, "–"),
    },
  ].filter(Boolean);
}

/** A table of tasks. `topics`, `owners`: whether it has these columns; `selection` as in table.js. */
export function TaskRows({ label, tasks, asOf, place, topics = false, owners = true, selection, testid = "tasks" }) {
  return h(Rows, {
    label,
    testid,
    rows: tasks,
    keyOf: (task) => task.sequence,
    selection,
    columns: columns(place, asOf, topics, owners),
  });
}
