/** The filter of tasks: a form whose fields are parameters of the URL. */
import { h, UI, useId, useState } from "../airflow_globals.js";
import { Icon } from "../icons.js";
import { FILTERS } from "../location.js";
import { useTyped } from "../text_input.js";
import { fromLocal, toLocal } from "../time_zone.js";

const MORE = ["reference", "since", "until", "error", "error_group"];

const STATES = [
  ["Waiting", ["ready", "scheduled", "retrying", "blocked", "paused"]],
  ["Running", ["running"]],
  ["Trouble", ["failed", "expired", "suspended"]],
  ["Done", ["succeeded", "filtered", "recreated", "redundant"]],
];

/** The status that corresponds to a state in a link; READY has several. */
const statusOf = (
  state,
) => (state === "ACTIVE" ? "running" : state === "READY" ? "READY" : (state ?? "").toLowerCase());

const word = (value) => h("option", { key: value, value }, value);
export const option = ([value, text]) => h("option", { key: value, value }, text);

/** A field with its label above it. */
export function Labelled({ label, children, ...props }) {
  const id = useId();
  const text = {
    as: "label",
    htmlFor: id,
    fontSize: "xs",
    fontWeight: "semibold",
    color: "fg.muted",
    display: "block",
    mb: 0.5,
  };
  return h(UI.Box, { minW: 0, ...props }, h(UI.Text, text, label), children(id));
}

/** A selection list. */
export function Choice({ label, value, onChange, children, ...props }) {
  const field = (id) =>
    h(
      UI.NativeSelect.Root,
      { size: "sm" },
      h(UI.NativeSelect.Field, { id, value, onChange: (event) => onChange(event.target.value) }, children),
      h(UI.NativeSelect.Indicator),
    );
  return h(Labelled, { label, ...props }, field);
}

/** A text that takes effect when the user stops typing or presses Enter. */
function Typed({ label, value = "", onChange, echo, wide, ...props }) {
  const { text, type, submit } = useTyped(value, onChange, echo);
  const events = { onChange: ({ target }) => type(target.value), onKeyDown: ({ key }) => key === "Enter" && submit() };
  const room = wide ? { gridColumn: { base: "1 / -1", md: "auto" } } : {};
  return h(Labelled, { label, ...room }, (id) => h(UI.Input, { id, size: "sm", value: text, ...events, ...props }));
}

function Moment({ value, onChange, ...props }) {
  const address = {
    value: toLocal(value),
    onChange: (text) => onChange(fromLocal(text)),
    echo: (text) => toLocal(fromLocal(text)),
  };
  return h(Typed, { ...props, ...address, type: "datetime-local", wide: true, step: 1 });
}

/** The form. It shows topic, status, identifier and order; the rest on request, or if in use. */
export function Filter({ place, children }) {
  const [more, setMore] = useState(MORE.some((name) => place[name]));
  const [cleared, setCleared] = useState(0);
  const set = (name) => (value) =>
    place.go({ [name]: value, after: null, before: null }, { replace: true, ifHere: true });
  const status = place.status ?? statusOf(place.state);
  const setStatus = (word) =>
    place.go({ state: null, status: word || null, after: null, before: null }, { replace: true });
  const clear = () => {
    setCleared(cleared + 1); // new fields, which also drops typed text that is not yet in the URL
    place.go(Object.fromEntries([...FILTERS, "after", "before"].map((name) => [name, null])));
  };
  const field = (Kind, name, label, props) =>
    h(Kind, { key: `${name} ${cleared}`, label, value: place[name], onChange: set(name), ...props });
  const groups = STATES.map(([title, options]) => h("optgroup", { key: title, label: title }, options.map(word)));
  const known = !status || STATES.some(([, words]) => words.includes(status));
  const fill = (least) => `repeat(auto-fill, minmax(min(100%, ${least}), 1fr))`;
  const grid = { gridTemplateColumns: { base: fill("8.5rem"), md: fill("12rem") }, gap: 3, alignItems: "end" };
  const any = FILTERS.some((name) => place[name]);
  return h(
    UI.Box,
    { as: "form", role: "search", "aria-label": "Filter tasks", onSubmit: (event) => event.preventDefault() },
    h(
      UI.Grid,
      grid,
      children,
      h(
        Choice,
        { label: "Status", value: status, onChange: setStatus },
        option(["", "Any"]),
        known ? null : word(status),
        groups,
      ),
      field(Typed, "identifier", "Identifier", { placeholder: "exactly" }),
      h(
        Choice,
        { label: "Order", value: place.order ?? "newest", onChange: set("order") },
        option(["newest", "Newest first"]),
        option(["oldest", "Oldest first"]),
      ),
      more ? field(Typed, "reference", "Reference", { placeholder: "exactly" }) : null,
      more ? field(Moment, "since", "Pushed since") : null,
      more ? field(Moment, "until", "Pushed until") : null,
      more ? field(Typed, "error", "Error contains") : null,
      more ? field(Typed, "error_group", "Group of errors", { placeholder: "exactly" }) : null,
      h(
        UI.HStack,
        { gap: 2, gridColumn: { base: "1 / -1", md: "auto" } },
        h(
          UI.Button,
          { size: "sm", variant: "ghost", "aria-expanded": more, onClick: () => setMore(!more) },
          h(Icon, { name: "filter" }),
          more ? "Fewer filters" : "More filters",
        ),
        any ? h(UI.Button, { size: "sm", variant: "ghost", onClick: clear }, "Clear") : null,
      ),
    ),
  );
}
