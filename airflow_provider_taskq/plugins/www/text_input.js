/** Text that takes effect when the user stops typing or presses Enter. */
import { h, UI, useEffect, useRef, useState } from "./airflow_globals.js";

const DELAY = 400; // milliseconds

/**
 * {text, type(text), submit()} of a field that shows the `value` of the address and calls `onChange` with typed text.
 *
 * `echo(text)`: the value that the address shows for a text, if it is another.
 */
export function useTyped(value, onChange, echo = (text) => text) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  // The value of the address, then the values that were sent to it and that it does not show yet.
  const sent = useRef([value]);
  const latest = useRef(onChange); // the address may change between a keystroke and the end of the timer
  latest.current = onChange;
  useEffect(() => {
    const place = sent.current.lastIndexOf(value);
    if (place < 0) {
      clearTimeout(timer.current); // the address changed by other means: drop the typed text
      setText(value);
    }
    sent.current = place < 0 ? [value] : sent.current.slice(place);
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const send = (now) => {
    clearTimeout(timer.current);
    sent.current.push(echo(now));
    latest.current(now);
  };
  const type = (now) => {
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => send(now), DELAY);
  };
  return { text, type, submit: () => send(text) };
}

/** A search field. */
export function Search({ label, value = "", onSearch }) {
  const { text, type, submit } = useTyped(value, onSearch);
  const now = (event) => {
    event.preventDefault();
    submit();
  };
  const field = {
    type: "search",
    size: "sm",
    "aria-label": label,
    placeholder: label,
  };
  return h(
    UI.Box,
    { as: "form", w: "18rem", maxW: "full", role: "search", onSubmit: now },
    h(UI.Input, { ...field, value: text, onChange: ({ target }) => type(target.value) }),
  );
}
