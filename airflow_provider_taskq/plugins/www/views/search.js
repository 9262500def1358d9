/** Tasks of all topics by sequence, identifier or reference. */
import { Fragment, h, UI, useEffect, useState } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { Empty, Loaded, Title } from "../components.js";
import { TaskRows } from "./task_rows.js";

/** The search field in the bar of every view: Enter opens the results. */
export function Find({ value = "", onFind }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  const find = (event) => {
    event.preventDefault();
    if (text.trim()) onFind(text.trim());
  };
  const label = "Find a task in all topics";
  const field = {
    type: "search",
    size: "sm",
    "aria-label": label,
    placeholder: "Find #, identifier, reference",
  };
  return h(
    UI.Box,
    { as: "form", w: "17rem", maxW: "full", role: "search", "aria-label": label, onSubmit: find },
    h(UI.Input, { ...field, value: text, onChange: ({ target }) => setText(target.value) }),
  );
}

export function SearchResults({ conn, place, focus }) {
  const text = place.text ?? "";
  const found = useView(conn, text ? "search" : null, { text });
  const none = h(
    Empty,
    { title: "No task matches" },
    "The search compares whole sequences, identifiers and references. In a topic, More filters finds tasks by their error.",
  );
  return h(
    UI.Stack,
    { gap: 3, minW: 0 },
    h(Title, { focus }, text ? `Tasks found by ${text}` : "Find a task"),
    text
      ? h(Loaded, { of: found }, ({ tasks, more, as_of: asOf }) => [
        tasks.length
          ? h(TaskRows, { key: "rows", label: "Found tasks", tasks, asOf, place, topics: true, testid: "found" })
          : h(Fragment, { key: "none" }, none),
        more
          ? h(
            UI.Text,
            { key: "more", fontSize: "sm", color: "fg.muted" },
            "Only the newest tasks are shown; more exist.",
          )
          : null,
      ])
      : h(
        Empty,
        { title: "Enter a search text" },
        "A sequence such as 4711, an identifier or a reference, in the field above.",
      ),
  );
}
