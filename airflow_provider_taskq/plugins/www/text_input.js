/** Text that counts once the user stops typing, or presses Enter. */
import { useEffect, useRef, useState } from "./airflow_globals.js";

const PATIENCE = 400;

/**
 * {text, type(text), settle()} of a field that follows the address's `value`, and tells `onChange` what was typed.
 *
 * `echo(text)`: the value that comes back of a text, where that is another.
 */
export function useTyped(value, onChange, echo = (text) => text) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  const told = useRef([value]); // what the address says, and what it is still to say, as it follows late
  const latest = useRef(onChange); // by when the timer rings, the address may say more than when the letter was typed
  latest.current = onChange;
  useEffect(() => {
    const place = told.current.lastIndexOf(value);
    if (place < 0) {
      clearTimeout(timer.current); // the address changed by itself: what was typed before is over
      setText(value);
    }
    told.current = place < 0 ? [value] : told.current.slice(place);
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const tell = (now) => {
    clearTimeout(timer.current);
    told.current.push(echo(now));
    latest.current(now);
  };
  const type = (now) => {
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => tell(now), PATIENCE);
  };
  return { text, type, settle: () => tell(text) };
}
