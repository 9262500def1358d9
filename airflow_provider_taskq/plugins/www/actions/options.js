/** The options of actions, and their labels. */
import { h, UI } from "../airflow_globals.js";
import { Choice, Labelled, option } from "../views/filter.js";

const REVIVALS = [
  ["RESET", "Reset: the task itself, in its old place"],
  ["APPEND", "Recreate: a copy; older tasks stay as they are"],
  ["SUPERSEDE", "Recreate: a copy instead of waiting tasks"],
  ["REPLACE", "Recreate: a copy instead of waiting and ended tasks"],
];
const RESULTS = [
  ["SUCCESS", "SUCCEEDED"],
  ["FILTER", "FILTERED"],
  ["SUSPENSION", "SUSPENDED"],
  ["FAILURE", "FAILED"],
];

function Grace({ value, onChange }) {
  const field = (id) =>
    h(UI.Input, {
      id,
      size: "sm",
      type: "number",
      min: 0,
      value,
      onChange: ({ target }) => onChange(Math.max(0, Number(target.value))),
    });
  return h(Labelled, { label: "Spare leases that lapsed less than this many seconds ago" }, field);
}

function Priority({ value, onChange }) {
  const range = { type: "number", min: -100, max: 100 };
  const field = (id) =>
    h(UI.Input, { id, size: "sm", ...range, value, onChange: ({ target }) => onChange(Number(target.value)) });
  return h(Labelled, { label: "Priority, -100 to 100: higher runs first" }, field);
}

/**
 * verb: the label of the button and the title. danger: the action cannot be undone. done: the label of the button that
 * closes the dialog, if it is not Cancel. options: the initial ones.
 */
export const KINDS = {
  retry: { verb: "Retry", icon: "again", options: { revival: "RESET" } },
  reassign: { verb: "Reassign", icon: "assign", options: { result: "SUCCESS" } },
  purge: { verb: "Purge", icon: "trash", danger: true, options: {} },
  release: { verb: "Release", icon: "release", options: {} },
  run_now: { verb: "Run now", icon: "play", options: {} },
  set_priority: { verb: "Change priority", icon: "sort", options: { priority: 0 } },
  cancel: { verb: "Cancel", icon: "cross", done: "Do not cancel", options: {} },
  pause: { verb: "Pause", icon: "pause", options: {} },
  resume: { verb: "Resume", icon: "play", options: {} },
  expire: { verb: "Expire", icon: "clock", options: { grace_seconds: 0 } },
};

/** The fields of an action's options; none if it has no options. */
export function Options({ action, options, onChange }) {
  const set = (name) => (value) => onChange({ ...options, [name]: value });
  if (action === "retry") {
    return h(Choice, { label: "How", value: options.revival, onChange: set("revival") }, REVIVALS.map(option));
  }
  if (action === "reassign") {
    return h(Choice, { label: "New result", value: options.result, onChange: set("result") }, RESULTS.map(option));
  }
  if (action === "set_priority") return h(Priority, { value: options.priority, onChange: set("priority") });
  return action === "expire" ? h(Grace, { value: options.grace_seconds, onChange: set("grace_seconds") }) : null;
}
