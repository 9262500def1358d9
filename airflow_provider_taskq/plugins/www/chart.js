/** A chart of ended tasks as SVG, with a text for screen readers. */
import { h, UI } from "./airflow_globals.js";
import { duration, number } from "./format.js";

const WIDTH = 600;
const HEIGHT = 72;
const KINDS = [
  ["succeeded", "success"],
  ["other", "skipped"],
  ["failed", "failed"],
];

const ended = (bar) => bar.succeeded + bar.failed + bar.other;
const sum = (bars, kind) => bars.reduce((total, bar) => total + bar[kind], 0);

/** The share of FAILED tasks among all that ended, in percent, as in `taskq stats`; null if no task ended. */
function failureRate(bars) {
  const failed = sum(bars, "failed");
  const ended = failed + sum(bars, "succeeded") + sum(bars, "other");
  return ended ? (100 * failed) / ended : null;
}

const percent = (
  rate,
) => (rate === null ? "none failed" : `${rate < 10 && rate > 0 ? rate.toFixed(1) : Math.round(rate)} % failed`);

function describe(bars, span) {
  const failed = sum(bars, "failed");
  return `${span}: ${number(sum(bars, "succeeded"))} succeeded, ${number(failed)} failed, ${
    number(sum(bars, "other"))
  } ended otherwise`;
}

/** The blocks of one bar, from the bottom up: succeeded, ended otherwise, failed. */
function blocks(bar, x, width, height, most) {
  let floor = height;
  return KINDS.filter(([kind]) => bar[kind] > 0).map(([kind, color]) => {
    // At least two units high, so that a single task is visible.
    const tall = Math.max(2, (height * bar[kind]) / most);
    floor = Math.max(0, floor - tall);
    const style = { fill: `var(--chakra-colors-${color}-solid)` };
    return h("rect", { key: kind, x, y: floor, width, height: tall, style });
  });
}

/** The base line. */
const ground = (width, height) =>
  h("line", { x1: 0, x2: width, y1: height, y2: height, style: { stroke: "var(--chakra-colors-border-emphasized)" } });

/** One bar with its tooltip. */
function column(bar, place, places, most, unit) {
  const step = WIDTH / places;
  const back = places - place - 1;
  const when = back ? `${duration(back * unit)} before the last` : "the last";
  const title = `${when}: ${number(bar.succeeded)} succeeded, ${number(bar.failed)} failed, ${
    number(bar.other)
  } otherwise`;
  const whole = h("rect", { x: place * step, y: 0, width: step, height: HEIGHT, fill: "transparent" });
  return h(
    "g",
    { key: place },
    h("title", null, title),
    whole,
    blocks(bar, place * step + step * 0.1, step * 0.8, HEIGHT, most),
  );
}

/** A chart of [{succeeded, failed, other}], the oldest first; `unit`: the seconds of a bar. */
export function Chart({ title, bars, unit, sampled }) {
  const most = Math.max(1, ...bars.map(ended));
  const total = sum(bars, "succeeded") + sum(bars, "failed") + sum(bars, "other");
  const picture = h(
    "svg",
    {
      key: "picture",
      viewBox: `0 0 ${WIDTH} ${HEIGHT + 1}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": describe(bars, title),
      style: { width: "100%", height: "4.5rem", display: "block" },
    },
    bars.map((bar, place) => column(bar, place, bars.length, most, unit)),
    ground(WIDTH, HEIGHT),
  );
  const line = { justify: "space-between", gap: 3, wrap: "wrap" };
  const rate = failureRate(bars);
  return h(
    UI.Box,
    { as: "figure", borderWidth: "1px", borderRadius: "md", p: 3, minW: 0, m: 0, alignSelf: "start" },
    h(
      UI.Flex,
      { as: "figcaption", ...line, mb: total ? 2 : 0, fontSize: "sm" },
      h(UI.Text, { fontWeight: "semibold" }, title),
      h(
        UI.Text,
        null,
        total ? `${sampled < 1 ? "about " : ""}${number(total)} ended` : "nothing ended",
        total ? h(UI.Text, { as: "span", color: rate ? "fg.error" : "fg.muted" }, ` · ${percent(rate)}`) : null,
      ),
    ),
    total ? [picture, h(Axis, { key: "axis", bars, unit, most })] : null,
  );
}

/** The labels of the time axis, and the height of the tallest bar. */
function Axis({ bars, unit, most }) {
  return h(
    UI.Flex,
    { justify: "space-between", gap: 3, wrap: "wrap", mt: 1, fontSize: "xs", color: "fg.muted", "aria-hidden": true },
    h("span", null, `${duration(bars.length * unit)} ago`),
    h("span", null, `at most ${number(most)} in ${duration(unit)}`),
    h("span", null, "now"),
  );
}

const SPARK_BARS = 20; // bars of three minutes: the last hour

/** A small chart for a table row, of [[place, succeeded, failed, other]] without empty places. */
export function Spark({ of }) {
  if (!of) return h(UI.Text, { as: "span", color: "fg.subtle" }, "–");
  const bars = of.map(([place, succeeded, failed, other]) => ({ place, succeeded, failed, other }));
  const most = Math.max(1, ...bars.map(ended));
  const [width, height] = [120, 20];
  const step = width / SPARK_BARS;
  const rate = failureRate(bars);
  const words = describe(bars, "Last hour");
  const picture = {
    viewBox: `0 0 ${width} ${height + 1}`,
    role: "img",
    "aria-label": words,
    style: { width: "7.5rem", height: "1.3rem" },
  };
  const drawing = bars.map((bar) =>
    h("g", { key: bar.place }, blocks(bar, bar.place * step, step * 0.8, height, most))
  );
  const failed = h(
    UI.Text,
    { as: "span", fontSize: "xs", color: "fg.error", "aria-hidden": true },
    rate ? percent(rate) : null,
  );
  return h(
    UI.HStack,
    { as: "span", gap: 2, whiteSpace: "nowrap" },
    h("svg", picture, h("title", null, words), drawing, ground(width, height)),
    failed,
  );
}
