/** The progress of consumer groups, and the transactions that hold back the logs. */
import { h, To, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { Empty, Loaded, Part, Title, When } from "../components.js";
import { Rows } from "../table.js";
import { count, number } from "../format.js";

const progress = (place, asOf) => [
  { title: "Group", look: { fontWeight: "semibold" }, show: (row) => row.group },
  { title: "Topic", show: (row) => h(To, { to: place.at({ topic: row.topic }) }, row.topic) },
  { title: "Partition", number: true, show: (row) => row.partition },
  { title: "Cursor", number: true, show: (row) => `#${row.cursor}` },
  { title: "Behind", number: true, show: (row) => count(row.behind) },
  { title: "Advanced", show: (row) => h(When, { at: row.advanced, from: asOf }) },
];

const holding = (place, asOf) => [
  { title: "Topic", show: (row) => h(To, { to: place.at({ topic: row.topic }) }, row.topic) },
  { title: "Process", number: true, show: (row) => row.pid ?? "–" },
  { title: "Application", show: (row) => row.application || "–" },
  { title: "Open since", show: (row) => h(When, { at: row.since, from: asOf }) },
  { title: "Groups stop before", number: true, show: (row) => `#${number(row.floor)}` },
];

function Holders({ holders, asOf, place }) {
  if (!holders.length) return null;
  return [
    h(Part, { key: "title" }, "Open transactions that hold a log back"),
    h(Rows, {
      key: "rows",
      label: "Open transactions",
      rows: holders,
      keyOf: (row) => `${row.topic}${row.pid}${row.floor}`,
      columns: holding(place, asOf),
    }),
  ];
}

export function ConsumerGroups({ conn, place, focus }) {
  const groups = useView(conn, "consumer_groups");
  return h(
    UI.Stack,
    { gap: 3 },
    h(Title, { focus }, "Consumer groups"),
    h(Loaded, { of: groups }, ({ consumer_groups: rows, holders, capped, as_of: asOf }) => [
      rows.length
        ? h(Rows, {
          key: "rows",
          label: "Consumer groups",
          testid: "consumer_groups",
          rows,
          keyOf: (row) => `${row.group}/${row.topic}/${row.partition}`,
          columns: progress(place, asOf),
        })
        : h(
          Empty,
          { key: "none", title: "No consumer group yet" },
          "A consumer group appears once a consumer has started, or has stored a cursor.",
        ),
      capped
        ? h(UI.Text, { key: "capped", fontSize: "sm", color: "fg.muted" }, "Only the first are shown; more exist.")
        : null,
      h(Holders, { key: "holders", holders, asOf, place }),
    ]),
  );
}
