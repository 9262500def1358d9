/** The audit log. */
import { h, To, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { Empty, Loaded, Title, When } from "../components.js";
import { Pages, Rows, turns } from "../table.js";
import { number, person } from "../format.js";

const columns = (place, asOf) => [
  { title: "When", show: (row) => h(When, { at: row.happened, from: asOf }) },
  { title: "By", show: (row) => person(row.actor, row.role) },
  { title: "Action", look: { fontWeight: "semibold" }, show: (row) => row.action },
  { title: "Topic", show: (row) => (row.topic ? h(To, { to: place.at({ topic: row.topic }) }, row.topic) : "–") },
  { title: "Details", show: (row) => row.what || "–" },
  { title: "Tasks", number: true, show: (row) => (row.count === null ? "–" : number(row.count)) },
];

export function Audit({ conn, place, focus }) {
  const audit = useView(conn, "audit", { topic: place.topic, after: place.after });
  return h(
    UI.Stack,
    { gap: 3 },
    h(Title, { focus }, place.topic ? `Audit of ${place.topic}` : "Audit"),
    h(Loaded, { of: audit }, ({ audit: rows, next, as_of: asOf }) => [
      rows.length
        ? h(Rows, {
          key: "rows",
          label: "Audit",
          testid: "audit",
          rows,
          keyOf: (row) => row.id,
          columns: columns(place, asOf),
        })
        : h(
          Empty,
          { key: "none", title: "No action yet" },
          "Every action of the page and of the command line, and every revealed payload, is listed here.",
        ),
      h(Pages, { key: "pages", ...turns(place, next) }),
    ]),
  );
}
