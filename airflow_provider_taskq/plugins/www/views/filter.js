/** What tasks to show: a form whose fields are the URL's. */
import { h, UI, useEffect, useId, useRef, useState } from "../host.js";
import { Icon } from "../icons.js";
import { FILTERS } from "../place.js";
import { fromWall, toWall } from "../zone.js";

const PATIENCE = 400;
const MORE = ["reference", "since", "until", "error"];

const STATES = [
  ["Waiting its turn", [["state:READY", "READY, all"], ["status:ready", "ready"], ["status:scheduled", "scheduled"], ["status:retrying", "retrying"], ["status:waiting", "waiting for others"]]],
  ["Running", [["state:ACTIVE", "ACTIVE"]]],
  ["In trouble", [["state:FAILED", "FAILED, all"], ["status:exhausted", "exhausted"], ["state:EXPIRED", "EXPIRED"], ["state:SUSPENDED", "SUSPENDED"]]],
  ["Done", [["state:SUCCEEDED", "SUCCEEDED"], ["state:FILTERED", "FILTERED"], ["state:RECREATED", "RECREATED"], ["state:REDUNDANT", "REDUNDANT"]]],
];

const option = ([value, text]) => h("option", { key: value, value }, text);

/** A field with its label above it. */
export function Labelled({ label, children, ...props }) {
  const id = useId();
  const text = { as: "label", htmlFor: id, fontSize: "xs", fontWeight: "semibold", color: "fg.muted", display: "block", mb: 0.5 };
  return h(UI.Box, { minW: 0, ...props }, h(UI.Text, text, label), children(id));
}

/** A choice among few. */
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

/** A text that counts once the user stops typing, or presses Enter. */
function Typed({ label, value = "", onChange, wide, ...props }) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  const told = useRef(value);
  const latest = useRef(onChange); // by when the timer rings, the address may say more than when the letter was typed
  latest.current = onChange;
  useEffect(() => {
    if (value !== told.current) setText(value);
    told.current = value;
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const tell = (now) => {
    told.current = now;
    latest.current(now);
  };
  const typed = ({ target }) => {
    setText(target.value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => tell(target.value), PATIENCE);
  };
  const enter = (event) => {
    if (event.key !== "Enter") return;
    clearTimeout(timer.current);
    tell(text);
  };
  const room = wide ? { gridColumn: { base: "1 / -1", md: "auto" } } : {};
  return h(Labelled, { label, ...room }, (id) => h(UI.Input, { id, size: "sm", value: text, onChange: typed, onKeyDown: enter, ...props }));
}

const Moment = ({ value, onChange, ...props }) =>
  h(Typed, { ...props, type: "datetime-local", wide: true, step: 1, value: toWall(value), onChange: (text) => onChange(fromWall(text)) });

/** The form: where, state and identifier at once, the rest when asked for or in use. */
export function Filter({ place, children }) {
  const [more, setMore] = useState(MORE.some((name) => place[name]));
  const set = (name) => (value) => place.go({ [name]: value, after: null, before: null }, { replace: true });
  const state = place.status ? `status:${place.status}` : place.state ? `state:${place.state}` : "";
  const setState = (value) => {
    const [kind, name] = value.split(":");
    const none = { state: null, status: null, after: null, before: null };
    place.go(value ? { ...none, [kind]: name } : none, { replace: true });
  };
  const clear = () => place.go(Object.fromEntries([...FILTERS, "after", "before"].map((name) => [name, null])));
  const groups = STATES.map(([title, options]) => h("optgroup", { key: title, label: title }, options.map(option)));
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
      h(Choice, { label: "State", value: state, onChange: setState }, option(["", "Any"]), groups),
      h(Typed, { label: "Identifier", value: place.identifier, onChange: set("identifier"), placeholder: "exactly" }),
      h(
        Choice,
        { label: "Order", value: place.order ?? "newest", onChange: set("order") },
        option(["newest", "Newest first"]),
        option(["oldest", "Oldest first"]),
      ),
      more ? h(Typed, { label: "Reference", value: place.reference, onChange: set("reference"), placeholder: "exactly" }) : null,
      more ? h(Moment, { label: "Pushed since", value: place.since, onChange: set("since") }) : null,
      more ? h(Moment, { label: "Pushed until", value: place.until, onChange: set("until") }) : null,
      more ? h(Typed, { label: "Error contains", value: place.error, onChange: set("error") }) : null,
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
