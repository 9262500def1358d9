/** Recurring tasks that wait. */
import { h, To, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { Empty, Loaded, Title, When } from "../components.js";
import { Rows } from "../table.js";
import { number } from "../format.js";

const columns = (place, asOf) => [
  { title: "Prefix", look: { fontWeight: "semibold" }, show: (row) => row.prefix },
  { title: "Topic", show: (row) => h(To, { to: place.at({ topic: row.topic }) }, row.topic) },
  { title: "Waiting", number: true, show: (row) => number(row.waiting) },
  { title: "Next", show: (row) => h(When, { at: row.next, from: asOf }) },
  { title: "Last", show: (row) => h(When, { at: row.last, from: asOf }) },
];

export function Ticks({ conn, place, focus }) {
  const ticks = useView(conn, "ticks", { topic: place.topic });
  return h(
    UI.Stack,
    { gap: 3 },
    h(Title, { focus }, place.topic ? `Ticks of ${place.topic}` : "Ticks"),
    h(Loaded, { of: ticks }, ({ ticks: rows, capped, as_of: asOf }) => [
      rows.length
        ? h(Rows, {
          key: "rows",
          label: "Ticks",
          testid: "ticks",
          rows,
          keyOf: (row) => `${row.topic}/${row.prefix}/${row.config_hash}`,
          columns: columns(place, asOf),
        })
        : h(
          Empty,
          { key: "none", title: "No tick waits" },
          "`taskq ticks install` or TaskQTicksOperator installs ticks ahead, one task for each moment.",
        ),
      capped
        ? h(UI.Text, { key: "capped", fontSize: "sm", color: "fg.muted" }, "Only the next ticks are shown; more exist.")
        : null,
    ]),
  );
}
