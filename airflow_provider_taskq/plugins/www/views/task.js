/** One task: why it is not running, its columns, its history, and its payload on request. */
import { OF_WAITING, TaskButtons } from "../actions/toolbar.js";
import { useActing } from "../actions/context.js";
import { h, To, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { Facts, Loaded, Part, State, Title, Verbatim, When } from "../components.js";
import { attemptTimes, bytes, sentence } from "../format.js";
import { InAirflow } from "./in_airflow.js";
import { Payload } from "./payload.js";
import { Holder } from "./task_rows.js";
import { Timeline } from "./timeline.js";

const TONES = {
  ACTIVE: "info",
  SUCCEEDED: "success",
  FAILED: "error",
  EXPIRED: "error",
  SUSPENDED: "warning",
  READY: "warning",
};

/** The reason why a task is not running, as an alert. A READY task that waits normally is no problem. */
function Why({ why, waitsNormally, task }) {
  const status = waitsNormally ? "info" : (TONES[task.state] ?? "neutral");
  return h(
    UI.Alert.Root,
    { status, size: "lg", role: "note", "aria-label": "Why", "data-testid": "why", py: 3 },
    h(UI.Alert.Indicator),
    h(
      UI.Alert.Title,
      { overflowWrap: "anywhere", fontWeight: "medium", fontSize: "md" },
      why ? sentence(why) : "No reason is known.",
    ),
  );
}

function facts(task, asOf, place) {
  const ended = task.completed !== null;
  return [
    ["Topic", h(To, { to: place.at({ topic: task.topic }) }, task.topic)],
    ["Sequence", String(task.sequence)],
    ["State", task.descent ? `${task.state}, before that ${task.descent}` : task.state],
    [
      "Identifier",
      h(To, { to: place.at({ topic: task.topic, view: "tasks", identifier: task.identifier }) }, task.identifier),
    ],
    [
      "Reference",
      task.reference
        ? h(To, { to: place.at({ topic: task.topic, view: "tasks", reference: task.reference }) }, task.reference)
        : null,
    ],
    ["Owner", task.owner ? h(Holder, { name: task.owner, place }) : null],
    ["In Airflow", task.links ? h(InAirflow, { links: task.links }) : null],
    ["Lease until", task.state === "ACTIVE" && task.lease_until ? h(When, { at: task.lease_until, from: asOf }) : null],
    ["Pushed", h(When, { at: task.created, from: asOf })],
    ["Due", ended ? null : h(When, { at: task.available_at, from: asOf })],
    ["Ended", ended ? h(When, { at: task.completed, from: asOf }) : null],
    ["Attempt", String(task.attempt)],
    ["Last attempt", attemptTimes(task, task.state === "ACTIVE" ? "running for" : "ran")],
    ["Crashes", task.crashes ? String(task.crashes) : null],
    ["Redelivered", task.redelivered ? "yes: a previous owner lost its lease" : null],
    ["Priority", String(task.priority)],
    ["Payload", task.payload_bytes === null ? "none" : bytes(task.payload_bytes)],
    ["Output", task.output_bytes === null ? null : bytes(task.output_bytes)],
  ];
}

function DependsOn({ dependencies, place }) {
  if (!dependencies?.length) return null;
  const one = ({ topic, identifier, sequence, state }) =>
    h(
      UI.HStack,
      { as: "li", key: `${topic}/${identifier}`, gap: 2, wrap: "wrap", fontSize: "sm" },
      sequence === null
        ? `${topic}: ${identifier}`
        : h(To, { to: place.at({ topic, sequence }) }, `${topic} #${sequence}: ${identifier}`),
      state ? h(State, { name: state.toLowerCase() }) : h(UI.Text, { color: "fg.muted" }, "there is none"),
    );
  return [
    h(Part, { key: "title" }, "Depends on"),
    h(UI.Stack, { key: "list", as: "ul", gap: 1, listStyleType: "none" }, dependencies.map(one)),
  ];
}

function Details({ data, conn, place }) {
  const { task, why, waits_normally: waitsNormally, timeline, as_of: asOf } = data;
  const columns = {
    gridTemplateColumns: { base: "minmax(0, 1fr)", xl: "minmax(0, 3fr) minmax(20rem, 2fr)" },
    gap: 6,
    alignItems: "start",
  };
  const left = h(
    UI.Stack,
    { gap: 3, minW: 0 },
    h(Facts, { facts: facts(task, asOf, place) }),
    h(DependsOn, { dependencies: data.depends_on, place }),
    task.error
      ? [
        h(Part, { key: "title" }, "Error"),
        h(Verbatim, { key: "text", label: "Error", "data-testid": "error" }, task.error),
      ]
      : null,
    h(Payload, { conn, task }),
  );
  const right = h(
    UI.Stack,
    { gap: 3, minW: 0 },
    h(Part, { mt: 0 }, "Timeline"),
    h(Timeline, { events: timeline, asOf, place, task }),
  );
  return h(UI.Stack, { gap: 4, minW: 0 }, h(Why, { why, waitsNormally, task }), h(UI.Grid, columns, left, right));
}

const ENDED = ["EXPIRED", "FAILED", "SUSPENDED", "FILTERED", "SUCCEEDED"];

function Buttons({ task, reload }) {
  const { mayAct, act } = useActing();
  if (!mayAct || !task || task.state === "ACTIVE") return task && mayAct ? h(Release, { task, act, reload }) : null;
  const kinds = ENDED.includes(task.state)
    ? ["retry", "reassign", "purge"]
    : task.state === "READY"
    ? [...OF_WAITING, "purge"]
    : ["purge"];
  const target = { topic: task.topic, sequences: [task.sequence], subject: `task #${task.sequence} of ${task.topic}` };
  return h(TaskButtons, { target, onDone: reload, kinds });
}

/** Releases the owner of a held task with all its tasks; the preview shows their number. */
function Release({ task, act, reload }) {
  const target = {
    action: "release",
    options: { owner: task.owner },
    subject: `what ${task.owner} holds`,
    onDone: reload,
  };
  return h(UI.Button, { size: "sm", variant: "outline", onClick: () => act(target) }, "Release its owner");
}

export function Task({ conn, place, focus }) {
  const { topic, sequence } = place;
  const found = useView(conn, "task", { topic, sequence });
  const task = found.data?.task;
  const badge = task ? h(State, { name: task.status }) : null;
  const title = task
    ? [`#${sequence} `, h(UI.Text, { key: "identifier", as: "span", fontWeight: "normal" }, task.identifier)]
    : `#${sequence}`;
  const up = h(
    UI.Box,
    { fontSize: "sm" },
    h(To, { to: place.at({ topic }) }, topic),
    h(UI.Text, { as: "span", color: "fg.muted" }, " / task"),
  );
  return h(
    UI.Stack,
    { gap: 3, minW: 0 },
    up,
    h(Title, { focus, badge, aside: h(Buttons, { task, reload: found.reload }) }, title),
    h(Loaded, { of: found }, (data) => h(Details, { data, conn, place })),
  );
}
