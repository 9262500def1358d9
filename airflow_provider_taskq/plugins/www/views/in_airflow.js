/** The ways from an owner that is a task instance to its DAG run and itself. */
import { h, To, UI } from "../airflow_globals.js";

/** Relative to Airflow's interface; the server made them of a name, escaped. */
const inside = (path) => `/${path}`;

export function InAirflow({ links }) {
  if (!links) return h(UI.Text, { as: "span", color: "fg.subtle" }, "–");
  return h(
    UI.HStack,
    { gap: 3, wrap: "wrap" },
    h(To, { to: inside(links.dag_run) }, "Dag run"),
    h(To, { to: inside(links.task_instance) }, "Task instance"),
  );
}
