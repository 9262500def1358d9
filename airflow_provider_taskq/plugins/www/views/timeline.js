/** The history of a task, the newest event first. */
import { h, To, UI } from "../airflow_globals.js";
import { Icon } from "../icons.js";
import { When } from "../components.js";
import { attemptTimes, person } from "../format.js";
import { InAirflow } from "./in_airflow.js";
import { Holder } from "./task_rows.js";

const LOOKS = {
  pushed: ["plus", "gray"],
  failed: ["cross", "failed"],
  lapsed: ["clock", "upstream_failed"],
  reset: ["again", "info"],
  recreated: ["copy", "info"],
  reassigned: ["assign", "info"],
  "due set": ["clock", "info"],
  "attempts set": ["again", "info"],
  "priority set": ["sort", "info"],
  paused: ["pause", "info"],
  resumed: ["play", "info"],
  canceled: ["cross", "gray"],
  held: ["play", "running"],
  ended: ["check", "gray"],
};
const ENDS = { SUCCEEDED: ["check", "success"], FAILED: ["cross", "failed"], EXPIRED: ["clock", "upstream_failed"] };

/** The title of an event. */
function describe(event) {
  const words = {
    failed: `Attempt ${event.attempt} failed`,
    lapsed: "The lease of its owner lapsed",
    reset: `Retried, was ${event.state}`,
    recreated: `Recreated as a copy, was ${event.state}`,
    reassigned: `Reassigned, was ${event.state}`,
    "due set": "Due time changed",
    "attempts set": `Attempts set to ${event.other}`,
    "priority set": `Priority set to ${event.other}`,
    paused: "Paused",
    resumed: "Resumed",
    canceled: "Canceled before it ran",
    held: `Running, attempt ${event.attempt}`,
    ended: `Ended as ${event.state}${event.attempt > 1 ? ` at attempt ${event.attempt}` : ""}`,
    pushed: "Pushed",
  };
  return words[event.what] ?? event.what;
}

/** The verb for the run time of an attempt. After a lapsed lease only the time that the task was held is known. */
const RUN_VERBS = { held: "running for", lapsed: "held for" };

function Times({ event }) {
  const times = attemptTimes(event, RUN_VERBS[event.what]);
  return times ? h(UI.Box, { fontSize: "sm", "data-testid": "times" }, times) : null;
}

/** The copy of a recreated task. Only for this event `other` is a sequence. */
function Copy({ event, place, task }) {
  if (event.what !== "recreated" || !event.other) return null;
  return h(To, { to: place.at({ topic: task.topic, sequence: event.other }) }, `#${event.other}`);
}

function Event({ event, asOf, place, task, last }) {
  const [icon, palette] = (event.what === "ended" && ENDS[event.state]) || (LOOKS[event.what] ?? ["next", "gray"]);
  const by = [
    event.holder ? ["by", h(Holder, { name: event.holder, place })] : null,
    event.actor || event.role ? ["requested by", person(event.actor, event.role)] : null,
  ];
  const people = by.filter(Boolean).map(([word, name]) =>
    h(UI.Box, { key: word, fontSize: "sm", overflowWrap: "anywhere" }, `${word} `, name)
  );
  return h(
    UI.Timeline.Item,
    { as: "li" },
    h(
      UI.Timeline.Connector,
      null,
      last ? null : h(UI.Timeline.Separator),
      h(
        UI.Timeline.Indicator,
        { colorPalette: palette, bg: "colorPalette.solid", color: "colorPalette.contrast" },
        h(Icon, { name: icon, boxSize: 3 }),
      ),
    ),
    h(
      UI.Timeline.Content,
      { pb: last ? 0 : 4, gap: 1, minW: 0 },
      h(UI.Timeline.Title, { flexWrap: "wrap", fontSize: "sm" }, describe(event), h(Copy, { event, place, task })),
      h(UI.Timeline.Description, null, event.happened ? h(When, { at: event.happened, from: asOf }) : "now"),
      h(Times, { event }),
      people,
      event.links ? h(UI.Box, { fontSize: "sm" }, h(InAirflow, { links: event.links })) : null,
      event.error ? h(Reason, { error: event.error, summary: event.error_summary }) : null,
    ),
  );
}

/** The summary of an error, and the end of its traceback on request. */
function Reason({ error, summary }) {
  const look = { fontFamily: "mono", fontSize: "xs", overflowWrap: "anywhere", color: "fg.muted" };
  if (error.trim() === summary) return h(UI.Text, look, summary);
  const whole = h(
    UI.Box,
    { as: "pre", ...look, whiteSpace: "pre-wrap", maxH: "16rem", overflow: "auto", mt: 1 },
    error,
  );
  return h("details", null, h(UI.Box, { as: "summary", cursor: "pointer", ...look }, summary), whole);
}

export function Timeline({ events, asOf, place, task }) {
  const newest = [...events].reverse();
  const line = (event, at) =>
    h(Event, { key: `${event.what}${event.happened}${at}`, event, asOf, place, task, last: at === newest.length - 1 });
  return h(UI.Timeline.Root, {
    as: "ol",
    size: "sm",
    "aria-label": "Timeline",
    "data-testid": "timeline",
    listStyleType: "none",
  }, newest.map(line));
}
