/** Components that the views share: headings, badges, notices, empty and loading states, times. */
import { h, UI, useEffect, useRef } from "./airflow_globals.js";
import { Icon } from "./icons.js";
import { clock, distance, moment } from "./format.js";

// Each status has Airflow's color of the task state that means the same.
const PALETTES = {
  running: "running",
  active: "running",
  ready: "info",
  scheduled: "scheduled",
  blocked: "deferred",
  retrying: "up_for_retry",
  paused: "queued",
  expired: "upstream_failed",
  failed: "failed",
  suspended: "restarting",
  filtered: "skipped",
  succeeded: "success",
  recreated: "removed",
  redundant: "removed",
  fine: "success",
  notice: "info",
  warning: "warning",
  critical: "failed",
};

/** A status as a badge, in Airflow's color and in words. An exhausted task shows as failed. */
export function State({ name: status, ...props }) {
  const name = { exhausted: "failed", active: "running" }[status] ?? status;
  const look = {
    colorPalette: PALETTES[name] ?? "gray",
    variant: "solid",
    borderRadius: "full",
    fontSize: "xs",
    px: 2,
  };
  return h(UI.Badge, { ...look, whiteSpace: "nowrap", ...props }, name);
}

/** The heading of a view. It takes the focus when the user comes from another view. */
export function Title({ children, focus, aside, badge }) {
  const heading = useRef(null);
  useEffect(() => {
    if (focus) heading.current?.focus({ preventScroll: true });
  }, [focus]);
  const title = h(
    UI.Heading,
    { as: "h2", size: "md", ref: heading, tabIndex: -1, outline: "none", minW: 0, overflowWrap: "anywhere" },
    children,
  );
  return h(
    UI.Flex,
    { align: "center", gap: 2, wrap: "wrap", rowGap: 2 },
    title,
    badge,
    aside
      ? h(UI.Flex, { gap: 2, wrap: "wrap", w: { base: "full", md: "auto" }, ml: { base: 0, md: "auto" } }, aside)
      : null,
  );
}

/** The heading of a part of a view. */
export const Part = ({ children, ...props }) => h(UI.Heading, { as: "h3", size: "sm", mt: 2, ...props }, children);

/** A button with an icon. */
export function ActionButton({ icon, children, ...props }) {
  return h(UI.Button, { size: "sm", variant: "outline", ...props }, icon ? h(Icon, { name: icon }) : null, children);
}

/** The message of an error, and a button to try again. */
export function Failure({ error, again }) {
  return h(
    UI.Alert.Root,
    { status: "error", role: "alert", "data-testid": "failure" },
    h(UI.Alert.Indicator),
    h(UI.Alert.Content, null, h(UI.Alert.Description, { overflowWrap: "anywhere" }, error.message)),
    again ? h(UI.Button, { size: "xs", variant: "outline", onClick: again }, "Try again") : null,
  );
}

/** Placeholders for rows, so that the layout does not jump when the rows arrive. */
export function Loading({ rows = 6 }) {
  const lines = Array.from(
    { length: rows },
    (_, place) => h(UI.Skeleton, { key: place, height: 9, borderRadius: "sm" }),
  );
  return h(UI.Stack, { gap: 2, role: "status", "aria-label": "Loading", "data-testid": "loading" }, lines);
}

/** A notice in the place of an empty list. */
export function Empty({ title, children }) {
  return h(
    UI.EmptyState.Root,
    { size: "sm", "data-testid": "empty" },
    h(
      UI.EmptyState.Content,
      null,
      h(UI.EmptyState.Title, { fontSize: "md" }, title),
      children ? h(UI.EmptyState.Description, { textAlign: "center", maxW: "lg" }, children) : null,
    ),
  );
}

/** One of: loading, an error, or the data, with the error of a failed refresh above it. */
export function Loaded({ of, rows, children }) {
  if (of.loading) return h(Loading, { rows });
  const failure = of.error ? h(Failure, { error: of.error, again: of.reload }) : null;
  return h(UI.Stack, { gap: 3, minW: 0 }, failure, of.data ? children(of.data) : null);
}

/** A moment, with its distance from another. */
export function When({ at, from, only }) {
  if (!at) return h(UI.Text, { as: "span", color: "fg.muted" }, "–");
  const away = from ? distance(at, from) : null;
  if (only === "distance") return h("time", { dateTime: at, title: moment(at) }, away);
  const exact = h("time", { dateTime: at }, moment(at));
  return away ? h("span", null, exact, h(UI.Text, { as: "span", color: "fg.muted" }, ` (${away})`)) : exact;
}

/** The time of the data, and the switch that stops the refresh. */
export function Freshness({ asOf, live, onLive }) {
  return h(
    UI.HStack,
    { gap: 2, color: "fg.muted", fontSize: "sm", whiteSpace: "nowrap" },
    h("span", { "data-testid": "as-of" }, asOf ? `as of ${clock(asOf)}` : "…"),
    h(
      UI.Switch.Root,
      { size: "sm", checked: live, onCheckedChange: ({ checked }) => onLive(checked), colorPalette: "brand" },
      h(UI.Switch.HiddenInput),
      h(UI.Switch.Control),
      h(UI.Switch.Label, { fontWeight: "normal" }, "Live"),
    ),
  );
}

/** Names with their values, in as many columns as fit. */
export function Facts({ facts }) {
  const shown = facts.filter((fact) => fact && fact[1] !== null && fact[1] !== undefined);
  const fact = ([name, value]) =>
    h(
      UI.Box,
      { key: name, minW: 0 },
      h(UI.Text, { as: "dt", fontSize: "xs", fontWeight: "semibold", color: "fg.muted" }, name),
      h(UI.Box, { as: "dd", fontSize: "sm", overflowWrap: "anywhere" }, value),
    );
  const fill = (least) => `repeat(auto-fill, minmax(min(100%, ${least}), 1fr))`;
  const columns = { base: fill("8.5rem"), md: fill("15rem") };
  return h(UI.Grid, { as: "dl", gridTemplateColumns: columns, columnGap: 6, rowGap: 3 }, shown.map(fact));
}

/** Preformatted text in a box that scrolls. */
export function Verbatim({ children, label, ...props }) {
  const look = {
    as: "pre",
    fontSize: "xs",
    fontFamily: "mono",
    bg: "bg.subtle",
    borderWidth: "1px",
    borderRadius: "md",
    p: 3,
  };
  const fit = { maxH: "28rem", overflow: "auto", whiteSpace: "pre-wrap", overflowWrap: "anywhere" };
  return h(UI.Box, { ...look, ...fit, tabIndex: 0, role: "region", "aria-label": label, ...props }, children);
}
