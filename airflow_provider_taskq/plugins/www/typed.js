/** Text that counts once the user stops typing, or presses Enter. */
import { useEffect, useRef, useState } from "./host.js";

const PATIENCE = 400;

/**
 * {text, type(text), settle()} of a field that follows the address's `value`, and tells `onChange` what was typed.
 *
 * `echo(text)`: the value that comes back of a text, where that is another.
 */
export function useTyped(value, onChange, echo = (text) => text) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  const told = useRef(value);
  const latest = useRef(onChange); // by when the timer rings, the address may say more than when the letter was typed
  latest.current = onChange;
  useEffect(() => {
    if (value !== told.current) {
      clearTimeout(timer.current); // the address changed by itself: what was typed before is over
      setText(value);
    }
    told.current = value;
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const tell = (now) => {
    clearTimeout(timer.current);
    told.current = echo(now);
    latest.current(now);
  };
  const type = (now) => {
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => tell(now), PATIENCE);
  };
  return { text, type, settle: () => tell(text) };
}
