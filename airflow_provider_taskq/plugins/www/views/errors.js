/** The failures of a topic, grouped by error: a count, a link to the tasks, and a retry for the whole group. */
import { useActing } from "../actions/context.js";
import { h, To, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { ActionButton, Part } from "../components.js";
import { Rows } from "../table.js";
import { distance, moment, number, plural } from "../format.js";

const LOOKED_AT = 10000; // FAILED tasks that the server reads

function Retry({ topic, group, onDone }) {
  const { mayAct, act } = useActing();
  if (!mayAct || !group.failed) return null;
  const filter = { status: "failed", error_group: group.error };
  const subject = `${plural(group.failed, "task")} of ${topic} that failed with ${group.error}`;
  return h(ActionButton, {
    icon: "again",
    size: "xs",
    onClick: () => act({ action: "retry", topic, filter, subject, onDone }),
  }, "Retry");
}

function columns(topic, place, asOf, onDone) {
  const tasks = (group) => place.at({ view: "tasks", topic, status: "failed", error_group: group.error });
  return [
    {
      title: "Failed",
      number: true,
      show: (group) => (group.failed ? h(To, { to: tasks(group) }, number(group.failed)) : "0"),
    },
    { title: "Retrying", number: true, empty: (group) => !group.retrying, show: (group) => number(group.retrying) },
    {
      title: "Error",
      look: { fontFamily: "mono", fontSize: "xs", overflowWrap: "anywhere" },
      show: (group) => h(UI.Text, { as: "span", title: group.example ?? undefined }, group.error),
    },
    {
      title: "Last failed",
      look: { whiteSpace: "nowrap" },
      empty: (group) => !group.last_failed,
      show: (
        group,
      ) => (group.last_failed
        ? h(
          "time",
          { dateTime: group.last_failed, title: moment(group.last_failed) },
          distance(group.last_failed, asOf),
        )
        : "–"),
    },
    { title: "", show: (group) => h(Retry, { topic, group, onDone }) },
  ];
}

/** The groups of errors; nothing if no task has failed. */
export function Errors({ conn, place, topic }) {
  const found = useView(conn, "errors", { topic });
  const groups = found.data?.errors ?? [];
  if (!groups.length) return null;
  const all = groups[0].looked_at;
  return h(
    UI.Stack,
    { gap: 2, minW: 0 },
    h(Part, null, "Failures by error"),
    h(Rows, {
      label: "Failures by error",
      testid: "errors",
      rows: groups,
      keyOf: (group) => group.error,
      columns: columns(topic, place, found.data.as_of, found.reload),
    }),
    all >= LOOKED_AT
      ? h(
        UI.Text,
        { fontSize: "sm", color: "fg.muted" },
        `Only the newest ${number(LOOKED_AT)} failed tasks were read.`,
      )
      : null,
  );
}
