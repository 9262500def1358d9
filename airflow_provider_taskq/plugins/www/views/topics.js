/** All topics at a glance. */
import { Spark } from "../chart.js";
import { h, Link, To, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { Empty, Loaded, State, Title } from "../components.js";
import { Search } from "../text_input.js";
import { Pages, Rows, turns } from "../table.js";
import { atLeast, count, duration, plural } from "../format.js";
import { option } from "./filter.js";

/** A count with a link to its tasks. */
function Counted({ of, to, palette }) {
  const some = atLeast(of) > 0;
  if (!some) return h(UI.Text, { as: "span", color: "fg.subtle" }, "0");
  const look = {
    color: palette ? `${palette}.fg` : "fg",
    fontWeight: palette ? "semibold" : "normal",
    textDecoration: "underline",
  };
  return h(
    UI.Box,
    { asChild: true, ...look, textDecorationColor: "border.emphasized", textUnderlineOffset: "3px" },
    h(Link, { to }, count(of)),
  );
}

function columns(place, throughput) {
  const tasks = (topic, filter) => place.at({ view: "tasks", topic, ...filter });
  const counted = (title, name, filter, palette) => ({
    title,
    number: true,
    sort: name,
    empty: (row) => atLeast(row[name]) === 0,
    show: (
      row,
    ) => (row.total ? count(row[name]) : h(Counted, { of: row[name], to: tasks(row.topic, filter), palette })),
  });
  const lately = (row) => throughput?.topics[row.topic];
  return [
    {
      title: "Topic",
      sort: "topic",
      show: (row) => (row.total ? plural(row.topics, "topic") : h(Name, { row, place })),
    },
    counted("Ready", "ready", { status: "ready" }),
    counted("Scheduled", "scheduled", { status: "scheduled" }),
    counted("Retrying", "retrying", { status: "retrying" }),
    counted("Blocked", "blocked", { status: "blocked" }),
    counted("Paused", "paused_tasks", { status: "paused" }),
    counted("Running", "running", { status: "running" }),
    counted("Failed", "failed", { status: "failed" }, "failed"),
    counted("Suspended", "suspended", { status: "suspended" }),
    counted("Expired", "expired", { status: "expired" }, "failed"),
    {
      title: "Oldest due",
      number: true,
      sort: "oldest",
      empty: (row) => !row.oldest_seconds,
      show: (row) => (row.total ? null : duration(row.oldest_seconds)),
    },
    {
      title: "Consumers",
      number: true,
      sort: "consumers",
      empty: (row) => !row.consumers,
      show: (row) => (row.total ? null : row.consumers),
    },
    {
      title: "Last hour",
      width: "13rem",
      empty: (row) => !lately(row),
      show: (row) => (row.total ? null : h(Spark, { of: lately(row) })),
    },
  ];
}

function Name({ row, place }) {
  const name = h(To, { to: place.at({ topic: row.topic }), fontWeight: "semibold" }, row.topic);
  return row.paused ? h(UI.HStack, { gap: 2, wrap: "wrap" }, name, h(State, { name: "paused" })) : name;
}

/** The sort key and order of the URL. Names start with a, numbers with the largest. */
function sortingOf(place) {
  const key = place.sort ?? "topic";
  const order = place.order ?? (key === "topic" ? "asc" : "desc");
  const by = (next) => {
    const turned = next === key ? { asc: "desc", desc: "asc" }[order] : null;
    place.go({ sort: next, order: turned, after: null });
  };
  return { key, order, by };
}

/** The sort field of narrow tables, and the switch to topics in trouble. */
function Choices({ place, sorting, sorts }) {
  const field = {
    "aria-label": "Sort by",
    value: sorting.key,
    onChange: ({ target }) => place.go({ sort: target.value, order: null, after: null }),
  };
  const sort = h(
    UI.NativeSelect.Root,
    { size: "sm", width: "9rem", hideFrom: "md" },
    h(UI.NativeSelect.Field, field, sorts.map(option)),
    h(UI.NativeSelect.Indicator),
  );
  const trouble = h(
    UI.Switch.Root,
    {
      size: "sm",
      checked: place.trouble === "true",
      onCheckedChange: ({ checked }) => place.go({ trouble: checked ? "true" : null, after: null }),
      colorPalette: "brand",
    },
    h(UI.Switch.HiddenInput),
    h(UI.Switch.Control),
    h(UI.Switch.Label, { fontWeight: "normal" }, "Only topics in trouble"),
  );
  return h(UI.HStack, { gap: 4, wrap: "wrap" }, trouble, sort);
}

/** The list of topics, with the totals of all that match. */
export function Topics({ conn, place, focus }) {
  const sorting = sortingOf(place);
  const { search, trouble, after } = place;
  const topics = useView(conn, "topics", { search, trouble, after, sort: sorting.key, order: sorting.order });
  const names = (topics.data?.topics ?? []).map(({ topic }) => topic).sort(); // the same request for each sort order
  const throughput = useView(conn, names.length ? "throughput" : null, { topic: names });
  const look = (now) => place.go({ search: now, after: null }, { ifHere: true });
  const shown = columns(place, throughput.data);
  const sorts = shown.filter((column) => column.sort).map((column) => [column.sort, column.title]);
  const aside = [
    h(Choices, { key: "choices", place, sorting, sorts }),
    h(Search, { key: "search", label: "Search topics", value: search, onSearch: look }),
  ];
  return h(
    UI.Stack,
    { gap: 3 },
    h(Title, { focus, aside }, "Topics"),
    h(Loaded, { of: topics }, ({ topics: rows, totals, next, capped }) => [
      rows.length
        ? h(Rows, {
          key: "rows",
          label: "Topics",
          testid: "topics",
          rows,
          keyOf: (row) => row.topic,
          columns: shown,
          sorting,
          foot: { ...totals, total: true },
        })
        : h(None, { key: "none", search, trouble }),
      h(Pages, {
        key: "pages",
        note: capped
          ? "Only the first 1,000 topics by name are sorted and totaled: search for a part of the name."
          : null,
        ...turns(place, next),
      }),
    ]),
  );
}

const None = ({ search, trouble }) =>
  trouble
    ? h(
      Empty,
      { title: "No topic is in trouble" },
      "No topic is paused, has failed or expired tasks, or has a task that has been due for more than 5 minutes.",
    )
    : search
    ? h(Empty, { title: "No topic contains this text" }, "Search for a shorter text.")
    : h(
      Empty,
      { title: "No topic yet" },
      "Create one with `taskq topics create`, with create_topic, or with create_topic=True of TaskQPushOperator.",
    );
