/** The icons of the page, on a grid of 24. */
import { h, UI } from "./airflow_globals.js";

const SHAPES = {
  again: "M20 5v5h-5 M19.5 10A8 8 0 1 0 20 14",
  assign: "M4 12h13 M12 6l6 6-6 6",
  back: "M14 6l-6 6 6 6",
  copy: "M9 9h11v11H9z M15 9V4H4v11h5",
  eye: "M2 12c3-5 6-7 10-7s7 2 10 7c-3 5-6 7-10 7s-7-2-10-7z M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6z",
  filter: "M4 5h16l-6 8v6l-4-2v-4z",
  next: "M10 6l6 6-6 6",
  pause: "M8 5v14 M16 5v14",
  play: "M7 4l12 8-12 8z",
  plus: "M12 5v14 M5 12h14",
  release: "M12 16V4 M7 9l5-5 5 5 M4 20h16",
  trash: "M4 7h16 M9 7V4h6v3 M6 7l1 13h10l1-13",
  clock: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z M12 7v5l3 3",
  sort: "M7 20V4 M3 8l4-4 4 4 M17 4v16 M13 16l4 4 4-4",
  check: "M5 13l4 4L19 7",
  cross: "M6 6l12 12 M18 6L6 18",
};

/** A decorative icon next to a text. */
export function Icon({ name, ...props }) {
  const drawing = { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", strokeWidth: 2 };
  const ends = { strokeLinecap: "round", strokeLinejoin: "round", "aria-hidden": true, focusable: false };
  return h(
    UI.Icon,
    { asChild: true, boxSize: 4, ...props },
    h("svg", { ...drawing, ...ends }, h("path", { d: SHAPES[name] })),
  );
}
