/** Owners, and the tasks that they hold. */
import { useActing } from "../actions/context.js";
import { h, To, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { ActionButton, Empty, Facts, Loaded, Part, State, Title, When } from "../components.js";
import { Search } from "../text_input.js";
import { Pages, Rows, turns } from "../table.js";
import { count, distance, duration, moment } from "../format.js";
import { InAirflow } from "./in_airflow.js";
import { TaskRows } from "./task_rows.js";

/** The end of a lease, and its distance from now. */
function Lease({ owner, asOf }) {
  const words = `${owner.lapsed ? "lapsed" : "ends"} ${distance(owner.lease_until, asOf)}`;
  const time = h("time", { dateTime: owner.lease_until, title: moment(owner.lease_until) }, words);
  return owner.lapsed ? h(UI.Text, { as: "span", color: "fg.error" }, time) : time;
}

function columns(place, asOf) {
  return [
    {
      title: "Owner",
      look: { fontWeight: "semibold" },
      show: (row) => h(To, { to: place.at({ view: "owner", owner: row.owner }) }, row.owner),
    },
    { title: "Holds", number: true, show: (row) => count(row.held) },
    { title: "Lease", show: (row) => h(Lease, { owner: row, asOf }) },
    { title: "Last heartbeat", show: (row) => h(When, { at: row.seen, from: asOf, only: "distance" }) },
    { title: "Topics", show: (row) => (row.topics ?? []).join(", ") || "–" },
    { title: "In Airflow", empty: (row) => !row.links, show: (row) => h(InAirflow, { links: row.links }) },
  ];
}

export function Owners({ conn, place, focus }) {
  const { mayAct, act } = useActing();
  const owners = useView(conn, "owners", { search: place.search, after: place.after });
  const expire = () => act({ action: "expire", subject: "lapsed leases", onDone: owners.reload });
  const look = (search) => place.go({ search, after: null }, { ifHere: true });
  const aside = [
    h(Search, { key: "search", label: "Search owners", value: place.search, onSearch: look }),
    mayAct ? h(ActionButton, { key: "expire", icon: "clock", onClick: expire }, "Expire lapsed leases") : null,
  ];
  return h(
    UI.Stack,
    { gap: 3 },
    h(Title, { focus, aside }, "Owners"),
    h(Loaded, { of: owners }, ({ owners: rows, next, as_of: asOf }) => [
      rows.length
        ? h(Rows, {
          key: "rows",
          label: "Owners",
          testid: "owners",
          rows,
          keyOf: (row) => row.owner,
          columns: columns(place, asOf),
        })
        : h(
          Empty,
          { key: "none", title: place.search ? "No owner contains this text" : "No owner" },
          place.search ? null : "No worker has registered.",
        ),
      h(Pages, { key: "pages", ...turns(place, next) }),
    ]),
  );
}

function HeldTasks({ data, place }) {
  const { owner, tasks, next, as_of: asOf } = data;
  if (!owner) return h(Empty, { title: "No owner of this name" }, "Its lease has ended, or it never registered.");
  const facts = [
    ["Lease", h(Lease, { owner, asOf })],
    ["Length of the lease", duration(owner.lease_seconds)],
    ["Last heartbeat", h(When, { at: owner.seen, from: asOf })],
    ["Holds", count(owner.held)],
    ["In Airflow", owner.links ? h(InAirflow, { links: owner.links }) : null],
  ];
  const rows = tasks.length
    ? h(TaskRows, { label: "Held tasks", tasks, asOf, place, topics: true, owners: false })
    : h(Empty, { title: "The owner holds no task" });
  return h(
    UI.Stack,
    { gap: 3, minW: 0 },
    h(Facts, { facts }),
    h(Part, null, "Held tasks"),
    rows,
    h(Pages, turns(place, next)),
  );
}

export function Owner({ conn, place, focus }) {
  const { mayAct, act } = useActing();
  const name = place.owner;
  const owner = useView(conn, "owner", { owner: name, after: place.after });
  const release = () =>
    act({ action: "release", options: { owner: name }, subject: `what ${name} holds`, onDone: owner.reload });
  const there = owner.data?.owner;
  const badge = there?.lapsed ? h(State, { name: "expired" }, "lapsed") : null;
  return h(
    UI.Stack,
    { gap: 3, minW: 0 },
    h(Title, {
      focus,
      badge,
      aside: mayAct && there ? h(ActionButton, { icon: "release", onClick: release }, "Release") : null,
    }, name),
    h(Loaded, { of: owner }, (data) => h(HeldTasks, { data, place })),
  );
}
