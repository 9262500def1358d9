/** The buttons that act on the selected tasks, else on all that match. */
import { h, UI } from "../airflow_globals.js";
import { ActionButton } from "../components.js";
import { plural } from "../format.js";
import { useActing } from "./context.js";
import { KINDS } from "./options.js";

const OF_TASKS = ["retry", "reassign", "purge"];
export const OF_WAITING = ["run_now", "set_priority", "cancel"];
const NOT_WAITING = [
  "running",
  "expired",
  "failed",
  "exhausted",
  "suspended",
  "filtered",
  "succeeded",
  "recreated",
  "redundant",
];

/** The actions for the tasks of a filter or a selection: for waiting tasks, for ended tasks, or for both. */
function kindsOf(filter, ticked, tasks) {
  const states = ticked.length
    ? tasks.filter(({ sequence }) => ticked.includes(sequence)).map(({ state }) => state)
    : [filter.state];
  const waiting = states.some((state) => state === "READY") ||
    (!ticked.length && filter.status && !NOT_WAITING.includes(filter.status));
  const ended = states.some((state) => state !== "READY") && !(waiting && !ticked.length);
  return [...(waiting ? OF_WAITING : []), ...(ended ? OF_TASKS : ["purge"])];
}

/** The buttons of actions on tasks; `target`: {topic, sequences or filter, subject}. */
export function TaskButtons({ target, onDone, kinds = OF_TASKS, suffix = "" }) {
  const { act } = useActing();
  return kinds.map((action) => {
    const { verb, icon, danger } = KINDS[action];
    const look = danger ? { colorPalette: "danger" } : {};
    return h(
      ActionButton,
      { key: action, icon, ...look, onClick: () => act({ action, ...target, onDone }) },
      verb + suffix,
    );
  });
}

/** The bar above a list of tasks. */
export function Actions({ topic, filter, filtered, chosen, onDone, tasks }) {
  const { mayAct } = useActing();
  if (!mayAct || (!tasks.length && chosen.keys.size === 0)) return null;
  const ticked = [...chosen.keys];
  const after = () => {
    chosen.all([]);
    onDone();
  };
  const target = ticked.length
    ? { topic, sequences: ticked, subject: `${plural(ticked.length, "task")} of ${topic}` }
    : { topic, filter, subject: `all tasks of ${topic} that match` };
  const words = ticked.length ? `${plural(ticked.length, "task")} selected` : "All that match";
  // Without a filter there is no button for all tasks: a slip would change a whole topic.
  if (!ticked.length && !filtered) {
    return h(
      UI.Text,
      { fontSize: "sm", color: "fg.muted", lineHeight: "2.25rem" },
      "Select tasks, or filter them, to act on several.",
    );
  }
  return h(
    UI.Flex,
    { role: "toolbar", "aria-label": words, align: "center", gap: 2, wrap: "wrap", "data-testid": "bulk" },
    h(UI.Text, { fontSize: "sm", color: ticked.length ? "fg" : "fg.muted", "aria-live": "polite" }, `${words}:`),
    h(TaskButtons, { target, onDone: after, kinds: kindsOf(filter, ticked, tasks), suffix: ticked.length ? "" : " …" }),
    ticked.length
      ? h(UI.Button, { size: "sm", variant: "ghost", onClick: () => chosen.all([]) }, "Clear selection")
      : null,
  );
}
