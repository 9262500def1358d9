/** The panel of a task instance: the tasks that it pushed, waits for or holds. */
import { h, To, UI, useEffect, useMemo, useState } from "./airflow_globals.js";
import { loadInstance, named } from "./task_instance.js";
import { Liveness, useLive } from "./polling.js";
import { Empty, Failure, Freshness, Loaded, Loading, Part, State } from "./components.js";
import { search } from "./location.js";
import { Rows } from "./table.js";
import { TaskRows } from "./views/task_rows.js";

/** Links of the panel lead to the page, on the same connection. */
function usePage(conn) {
  return useMemo(
    () => ({ at: (place) => ({ pathname: "/plugin/taskq", search: search({ conn_id: conn, ...place }) }) }),
    [conn],
  );
}

function Tasks({ title, tasks, asOf, place, none, owners }) {
  const rows = tasks.length
    ? h(TaskRows, {
      label: title,
      tasks,
      asOf,
      place,
      topics: true,
      owners,
      testid: title.toLowerCase().replaceAll(" ", "-"),
    })
    : h(UI.Text, { fontSize: "sm", color: "fg.muted" }, none);
  return h(UI.Stack, { as: "section", gap: 2, minW: 0, "aria-label": title }, h(Part, null, title), rows);
}

function WaitsFor({ waits, topic, place }) {
  if (!waits.length) return null;
  const columns = [
    { title: "Identifier", look: { fontWeight: "semibold" }, show: ({ identifier }) => identifier },
    {
      title: "Newest task",
      show: (
        { task },
      ) => (task ? h(To, { to: place.at({ topic, sequence: task.sequence }) }, `#${task.sequence}`) : "none yet"),
    },
    { title: "State", show: ({ task }) => (task ? h(State, { name: task.status }) : "–") },
  ];
  const rows = h(Rows, {
    label: "Waits for",
    rows: waits,
    keyOf: ({ identifier }) => identifier,
    columns,
    testid: "waits-for",
  });
  return h(UI.Stack, { as: "section", gap: 2, minW: 0, "aria-label": "Waits for" }, h(Part, null, "Waits for"), rows);
}

/** The topic that a sensor waits for. */
function Topic({ topic, place }) {
  if (!topic) return null;
  return h(
    UI.HStack,
    { gap: 2, wrap: "wrap", fontSize: "sm" },
    h(UI.Text, { color: "fg.muted" }, "Topic"),
    h(To, { to: place.at({ topic: topic.topic }), fontWeight: "semibold" }, topic.topic),
    topic.paused ? h(State, { name: "paused" }) : null,
  );
}

function Notice({ status, testid, children }) {
  return h(
    UI.Alert.Root,
    { status, size: "sm", role: "note", "data-testid": testid },
    h(UI.Alert.Indicator),
    h(UI.Alert.Content, { overflowWrap: "anywhere" }, children),
  );
}

/** The tasks that a sensor claimed, and their states. */
function Claim({ claim, asOf, place }) {
  if (!claim) return null;
  const known = claim.states.reduce((sum, { count }) => sum + count, 0);
  const bad = known < claim.claimed || claim.states.some(({ state }) => state === "FAILED" || state === "EXPIRED");
  const owner = h(To, { to: place.at({ view: "owner", owner: claim.owner }) }, "Its owner in the queue");
  return h(
    UI.Stack,
    { gap: 2, minW: 0 },
    h(Notice, { status: bad ? "warning" : "success", testid: "claim" }, claim.sentence, " ", owner),
    h(Tasks, {
      title: "Claimed",
      owners: false,
      tasks: claim.tasks,
      asOf,
      place,
      none: "The claim holds no task any more, and none has ended.",
    }),
  );
}

function InstanceTasks({ data, details, place }) {
  const { owner, holds, pushed, waits_for: waits, topic, as_of: asOf } = data;
  const nothing = !owner && !holds.length && !pushed.length && !waits.length && !data.drain;
  if (nothing && !topic) {
    return h(
      Empty,
      { title: "No tasks of the queue" },
      "This task instance has pushed no task, waits for none and holds none.",
    );
  }
  return h(
    UI.Stack,
    { gap: 4, minW: 0 },
    h(Topic, { topic, place }),
    data.waits ? h(Notice, { status: "info", testid: "waits" }, data.waits) : null,
    h(Claim, { claim: data.claim, asOf, place }),
    data.drain ? h(Notice, { status: "info", testid: "drain" }, data.drain) : null,
    h(Tasks, { title: "Holds", owners: false, tasks: holds, asOf, place, none: "The owner holds no task." }),
    details.first
      ? h(Tasks, { title: "Pushed", tasks: pushed, asOf, place, none: "The pushed tasks were purged." })
      : null,
    h(WaitsFor, { waits, topic: topic?.topic, place }),
  );
}

function InstanceView({ conn, instance, details }) {
  const place = usePage(conn);
  const { topic, first, last, identifiers, claimedAs, claimed, since, wait } = details;
  const query = {
    ...named(instance),
    claimed_as: claimedAs,
    claimed,
    since,
    ...wait,
    topic,
    first,
    last,
    identifier: identifiers,
  };
  const found = useLive(`${encodeURIComponent(conn)}/instance`, query);
  return h(Loaded, { of: found, rows: 4 }, (data) => h(InstanceTasks, { data, details, place }));
}

/** The panel that Airflow shows on the page of a task instance. */
export function Panel({ dagId, runId, taskId, mapIndex }) {
  const instance = useMemo(() => ({ dagId, runId, taskId, mapIndex: mapIndex ?? "-1" }), [
    dagId,
    runId,
    taskId,
    mapIndex,
  ]);
  const [live, setLive] = useState(true);
  const [asOf, report] = useState(null);
  const liveness = useMemo(() => ({ live, report }), [live]);
  const connections = useLive("connections", {}, { once: true });
  const details = useInstance(instance);
  const conn = details?.conn ?? connections.data?.connections[0]?.conn_id;
  const content = () => {
    if (connections.error) return h(Failure, { error: connections.error, again: connections.reload });
    if (!connections.data || !details) return h(Loading, { rows: 4 });
    if (details.ours === false) {
      return h(
        Empty,
        { title: "Not a task of TaskQ" },
        "Airflow shows this tab on every task instance. This one runs another operator.",
      );
    }
    return conn ? h(InstanceView, { conn, instance, details }) : h(Empty, { title: "No connection to show" });
  };
  return h(
    Liveness.Provider,
    { value: liveness },
    h(
      UI.Stack,
      { gap: 3, p: 2, minW: 0, "data-testid": "taskq-panel" },
      h(UI.Flex, { justify: "flex-end" }, h(Freshness, { asOf, live, onLive: setLive })),
      details?.refused ? h(UI.Text, { fontSize: "sm", color: "fg.muted" }, details.refused) : null,
      content(),
    ),
  );
}

/** What Airflow knows about the instance; null until it has answered. */
function useInstance(instance) {
  const [details, setDetails] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    setDetails(null);
    loadInstance(instance, abort.signal).then(
      (details) => setDetails(details),
      () => {}, // aborted: the user opened another instance
    );
    return () => abort.abort();
  }, [instance]);
  return details;
}
