/** A field to search by, which looks when the user stops typing or presses Enter. */
import { h, UI, useEffect, useRef } from "./host.js";

const PATIENCE = 400;

export function Search({ label, value, onValue, onSearch }) {
  const timer = useRef(null);
  const latest = useRef(onSearch);
  latest.current = onSearch;
  useEffect(() => () => clearTimeout(timer.current), []);
  const soon = (text) => {
    onValue(text);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => latest.current(text), PATIENCE);
  };
  const now = (event) => {
    event.preventDefault();
    clearTimeout(timer.current);
    onSearch(value);
  };
  const field = { type: "search", size: "sm", width: { base: "full", sm: "18rem" }, "aria-label": label, placeholder: label };
  return h("form", { role: "search", onSubmit: now }, h(UI.Input, { ...field, value, onChange: (event) => soon(event.target.value) }));
}
