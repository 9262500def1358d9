/** The page: connection, tabs, freshness, and the view that the URL names. */
import { Acting } from "./actions/context.js";
import {
  Fragment,
  h,
  Link,
  UI,
  useCallback,
  useEffect,
  useLocation,
  useMemo,
  useNavigate,
  useRef,
  useState,
} from "./airflow_globals.js";
import { Liveness, useLive } from "./polling.js";
import { Icon } from "./icons.js";
import { Empty, Failure, Freshness, Loading } from "./components.js";
import { FILTERS, titleOf, usePlace, viewKey } from "./location.js";
import { Audit } from "./views/audit.js";
import { Health } from "./views/health.js";
import { Locks } from "./views/locks.js";
import { Owner, Owners } from "./views/owners.js";
import { ConsumerGroups } from "./views/consumer_groups.js";
import { Find, SearchResults } from "./views/search.js";
import { Task } from "./views/task.js";
import { Tasks } from "./views/tasks.js";
import { Ticks } from "./views/ticks.js";
import { Topic } from "./views/topic.js";
import { Topics } from "./views/topics.js";

const TABS = [
  ["topics", "Topics"],
  ["tasks", "Tasks"],
  ["owners", "Owners"],
  ["locks", "Locks"],
  ["consumer_groups", "Consumer groups"],
  ["ticks", "Ticks"],
  ["health", "Health"],
  ["audit", "Audit"],
];
const VIEWS = {
  topics: Topics,
  topic: Topic,
  tasks: Tasks,
  task: Task,
  owners: Owners,
  owner: Owner,
  locks: Locks,
  consumer_groups: ConsumerGroups,
  ticks: Ticks,
  health: Health,
  audit: Audit,
  search: SearchResults,
};
const TAB_OF = { topic: "topics", task: "tasks", owner: "owners", search: "tasks" };

function Tab({ to, title, current }) {
  const look = {
    color: current ? "fg" : "fg.muted",
    borderBottomWidth: 3,
    borderColor: current ? "border.info" : "transparent",
  };
  return h(
    UI.Box,
    {
      asChild: true,
      fontWeight: "bold",
      px: { base: 2.5, md: 4 },
      pb: 2,
      mb: "-1px",
      whiteSpace: "nowrap",
      _hover: { color: "fg" },
      ...look,
    },
    h(Link, { to, "aria-current": current ? "page" : undefined }, title),
  );
}

function Tabs({ place }) {
  const shown = TAB_OF[place.view] ?? place.view;
  const tabs = TABS.map(([view, title]) =>
    h(Tab, { key: view, title, to: place.at({ view }), current: view === shown })
  );
  const bar = useRef(null);
  const hidden = useHidden(bar);
  useEffect(() => {
    bar.current.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [shown]);
  const look = { borderBottomWidth: 1, overflowX: "auto", overflowY: "hidden", pt: 2, scrollbarWidth: "none" };
  const further = (side, name) =>
    hidden[side]
      ? h(
        UI.IconButton,
        {
          key: side,
          "aria-label": `Tabs further ${side}`,
          size: "xs",
          variant: "subtle",
          position: "absolute",
          bottom: 1.5,
          [side]: 0,
          onClick: () => bar.current.scrollBy({ left: (side === "left" ? -0.7 : 0.7) * bar.current.clientWidth }),
        },
        h(Icon, { name }),
      )
      : null;
  const nav = h(UI.Flex, { as: "nav", "aria-label": "TaskQ", ref: bar, ...look }, tabs);
  return h(
    UI.Box,
    { position: "relative", flexShrink: 0, minW: 0 },
    nav,
    further("left", "back"),
    further("right", "next"),
  );
}

/** On which sides a scrolling bar has hidden content. */
function useHidden(bar) {
  const [hidden, setHidden] = useState({ left: false, right: false });
  useEffect(() => {
    const element = bar.current;
    const look = () => {
      const rest = element.scrollWidth - element.clientWidth - element.scrollLeft;
      setHidden({ left: element.scrollLeft > 1, right: rest > 1 });
    };
    const sizes = new ResizeObserver(look);
    sizes.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    look();
    return () => {
      sizes.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, [bar]);
  return hidden;
}

/** The connection, and a choice if there are several. */
function Connections({ connections, conn, place }) {
  if (connections.length < 2) return h(UI.Text, { fontSize: "sm", color: "fg.muted", truncate: true }, conn.conn_id);
  const options = connections.map(({ conn_id }) => h("option", { key: conn_id, value: conn_id }, conn_id));
  const field = {
    "aria-label": "Connection",
    value: conn.conn_id,
    onChange: (event) => place.go({ ...CONNECTION_PARAMETERS, conn_id: event.target.value }),
  };
  return h(
    UI.NativeSelect.Root,
    { size: "sm", width: { base: "7.5rem", md: "14rem" } },
    h(UI.NativeSelect.Field, field, options),
    h(UI.NativeSelect.Indicator),
  );
}

// The parameters that belong to one connection.
const CONNECTION_PARAMETERS = Object.fromEntries(
  ["topic", "sequence", "owner", "after", "before", "view"].map((name) => [name, null]),
);

// The parameters that belong to one view.
const ALL_PARAMETERS = Object.fromEntries(
  ["topic", "sequence", "owner", "after", "before", "search", "sort", "trouble", ...FILTERS].map((
    name,
  ) => [name, null]),
);

function chosen(connections, wanted) {
  return connections.find(({ conn_id }) => conn_id === wanted) ?? (wanted ? null : connections[0]);
}

function Body({ place, connections, asOf, live, setLive }) {
  const conn = chosen(connections, place.conn_id);
  const here = viewKey(place);
  const came = useRef(here);
  if (came.current !== here) came.current = null;
  if (!conn) {
    const none = connections.length
      ? `[taskq] conn_ids does not list the connection ${place.conn_id}: choose another one.`
      : "The setting conn_ids of the section [taskq] lists no connection that you may view.";
    return h(Empty, { title: "No connection to show" }, none);
  }
  const View = Object.hasOwn(VIEWS, place.view) ? VIEWS[place.view] : Topics;
  const bar = { align: "center", justify: "space-between", gap: 3, wrap: "wrap" };
  return h(
    Fragment,
    null,
    h(Tabs, { place }),
    h(
      UI.Flex,
      { ...bar, as: "section", "aria-label": "Connection and freshness" },
      h(
        UI.HStack,
        { gap: 3, minW: 0 },
        h(Connections, { connections, conn, place }),
        conn.may_act ? null : h(
          UI.Badge,
          { variant: "surface", title: "To act, you need the right to edit this connection" },
          "view only",
        ),
      ),
      h(Find, {
        key: here,
        value: place.view === "search" ? place.text : "",
        onFind: (text) => place.go({ ...ALL_PARAMETERS, view: "search", text }),
      }),
      h(Freshness, { asOf, live, onLive: setLive }),
    ),
    h(Acting, { key: conn.conn_id, conn, here }, h(View, { key: here, conn, place, focus: came.current === null })),
  );
}

/**
 * The page at plugin/taskq.
 *
 * Airflow renders a plugin's component through React.lazy at first, and directly after the next change of the URL. To
 * React these are two components, so it would mount the page again at the first letter of a filter, and the field would
 * lose the focus. The page therefore changes the URL once itself, and shows nothing before that change.
 */
export function Page() {
  const [ready] = useState(settled);
  const [{ key, pathname, search }, navigate] = [useLocation(), useNavigate()];
  const came = useRef(key);
  useEffect(() => {
    if (settled) return;
    settled = true;
    navigate({ pathname, search }, { replace: true });
  }, [navigate, pathname, search]);
  return ready || key !== came.current ? h(PageContent) : h(Loading);
}

let settled = false;

function PageContent() {
  const place = usePlace();
  const [live, setLive] = useState(true);
  const [asOf, report] = useFreshest(place.view);
  const liveness = useMemo(() => ({ live, report }), [live, report]);
  const known = useLive("connections", {}, { once: true });
  const shown = known.data
    ? h(Body, { place, connections: known.data.connections, asOf, live, setLive })
    : known.error
    ? h(Failure, { error: known.error, again: known.reload })
    : h(Loading);
  useTitle(titleOf(place));
  const room = { px: { base: 1, md: 2 }, pb: 6, gap: 3, minW: 0, w: "full", overflowY: "auto", h: "full" };
  return h(Liveness.Provider, { value: liveness }, h(UI.Stack, { as: "main", "data-testid": "taskq", ...room }, shown));
}

/** Sets the title of the browser's tab, and restores Airflow's when the user leaves the page. */
function useTitle(title) {
  useEffect(() => {
    const before = document.title;
    return () => {
      document.title = before;
    };
  }, []);
  useEffect(() => {
    document.title = `${title} · TaskQ`;
  }, [title]);
}

/** The time of the newest data of a view, and the function that reports one. */
function useFreshest(view) {
  const [asOf, setAsOf] = useState(null);
  useEffect(() => setAsOf(null), [view]);
  const report = useCallback(
    (moment) => setAsOf((before) => (!before || Date.parse(moment) > Date.parse(before) ? moment : before)),
    [],
  );
  return [asOf, report];
}
