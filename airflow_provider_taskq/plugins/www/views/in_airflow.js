/** Links from an owner to its DAG run and task instance. */
import { h, To, UI } from "../airflow_globals.js";

/** The server made and escaped the links; they are relative to Airflow's base URL. */
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
