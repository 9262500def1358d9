/** Tasks of a topic: the filter, a page of the list, and the actions. */
import { Actions } from "../actions/toolbar.js";
import { Fragment, h, UI, useMemo, useState } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { Empty, Loaded, Title } from "../components.js";
import { filterOf } from "../location.js";
import { Pages } from "../table.js";
import { number, plural } from "../format.js";
import { Filter } from "./filter.js";
import { TaskRows } from "./task_rows.js";
import { TopicField } from "./topic_field.js";

const SIZE = 50;

/** The selected sequences; cleared when other tasks are shown. */
function useSelection(key) {
  const [kept, setKept] = useState({ key, keys: new Set() });
  const keys = kept.key === key ? kept.keys : new Set();
  return useMemo(
    () => ({
      keys,
      toggle(one) {
        setKept((before) => {
          const next = new Set(before.key === key ? before.keys : []);
          if (!next.delete(one)) next.add(one);
          return { key, keys: next };
        });
      },
      all: (these) => setKept({ key, keys: new Set(these) }),
    }),
    [key, keys],
  );
}

const stopNote = (data) =>
  data.looked_to === null || data.looked_to === undefined
    ? null
    : `The search stopped at #${number(data.looked_to)}: the next page continues from there.`;

function TaskPage({ data, place, filter, selection, reload, topic }) {
  const filtered = Object.keys(filter).length > 0;
  const none = filtered
    ? h(
      Empty,
      { title: "No task matches" },
      "Loosen the filter: it compares whole identifiers and references, and a part of the error.",
    )
    : h(Empty, { title: "No task yet" }, "No task has been pushed to this topic, or all were purged.");
  const turn = (name, value) => (value ? () => place.go({ after: null, before: null, [name]: value }) : null);
  const rows = { label: "Tasks", tasks: data.tasks, asOf: data.as_of, place, selection };
  return h(
    Fragment,
    null,
    h(UI.VisuallyHidden, { role: "status" }, `${plural(data.tasks.length, "task")} on this page`),
    h(Actions, { topic, filter, filtered, chosen: selection, onDone: reload, tasks: data.tasks }),
    data.tasks.length ? h(TaskRows, rows) : none,
    h(Pages, {
      note: stopNote(data),
      first: place.after || place.before ? () => place.go({ after: null, before: null }) : null,
      previous: turn("before", data.previous),
      next: turn("after", data.next),
    }),
  );
}

/** The tasks of the topic in the URL, without a heading. The view of a topic contains it too. */
export function TaskList({ conn, place, topic, children }) {
  const filter = filterOf(place);
  const { order, after, before } = place;
  const query = { topic, ...filter, order, after, before, size: SIZE };
  const tasks = useView(conn, topic ? "tasks" : null, query);
  const selection = useSelection(JSON.stringify(query));
  const list = topic
    ? h(Loaded, { of: tasks }, (data) => h(TaskPage, { data, place, filter, selection, reload: tasks.reload, topic }))
    : h(Empty, { title: "Choose a topic" }, "Tasks are listed topic by topic.");
  return h(UI.Stack, { gap: 3, minW: 0 }, h(Filter, { place }, children), list);
}

/** The tab of tasks, with a field for the topic. */
export function Tasks({ conn, place, focus }) {
  const field = h(TopicField, {
    conn,
    value: place.topic,
    onChoose: (topic) => place.go({ topic, after: null, before: null }),
  });
  return h(UI.Stack, { gap: 3 }, h(Title, { focus }, "Tasks"), h(TaskList, { conn, place, topic: place.topic }, field));
}
