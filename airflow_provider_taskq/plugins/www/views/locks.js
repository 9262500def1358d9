/** Locks: name, holder and end. */
import { h, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { Empty, Loaded, Title, When } from "../components.js";
import { Pages, Rows, turns } from "../table.js";
import { duration } from "../format.js";

const columns = (asOf) => [
  { title: "Name", look: { fontWeight: "semibold" }, show: (row) => row.name },
  {
    title: "Held by",
    show: (row) =>
      row.held_by ||
      h(UI.Text, { as: "span", color: "fg.muted" }, "no owner: the lock was released, and stays locked until then"),
  },
  { title: "Since", show: (row) => h(When, { at: row.locked, from: asOf }) },
  { title: "Until", show: (row) => h(When, { at: row.until }) },
  { title: "Left", number: true, show: (row) => duration(row.seconds_left) },
];

export function Locks({ conn, place, focus }) {
  const locks = useView(conn, "locks", { after: place.after });
  return h(
    UI.Stack,
    { gap: 3 },
    h(Title, { focus }, "Locks"),
    h(Loaded, { of: locks }, ({ locks: rows, next, as_of: asOf }) => [
      rows.length
        ? h(Rows, {
          key: "rows",
          label: "Locks",
          testid: "locks",
          rows,
          keyOf: (row) => row.name,
          columns: columns(asOf),
        })
        : h(
          Empty,
          { key: "none", title: "No lock is held" },
          "A lock is held by name for a limited time. A process that cannot get it continues without it.",
        ),
      h(Pages, { key: "pages", ...turns(place, next) }),
    ]),
  );
}
