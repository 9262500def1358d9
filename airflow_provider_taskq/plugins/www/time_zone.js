/** Converts between moments and local time in the time zone that the user chose in Airflow. */
import { timeZone } from "./airflow_globals.js";

const FIELDS = {
  year: "numeric",
  month: "2-digit",
  day: "2-digit",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
};

/** The local time of a moment as texts: {year, month, day, hour, minute, second}. */
export function localParts(moment) {
  const made = new Intl.DateTimeFormat("en", { ...FIELDS, hourCycle: "h23", timeZone: timeZone() }).formatToParts(
    new Date(moment),
  );
  return Object.fromEntries(made.map(({ type, value }) => [type, value]));
}

/** The local time of a moment (ms), as if it were UTC (ms). */
function localTime(at) {
  const { year, month, day, hour, minute, second } = localParts(at);
  return Date.UTC(year, month - 1, day, hour, minute, second);
}

/** A moment (ISO 8601) as the value of a datetime-local field; "" for none. */
export function toLocal(iso) {
  const at = Date.parse(iso ?? "");
  return Number.isNaN(at) ? "" : new Date(localTime(at)).toISOString().slice(0, 19);
}

/** The moment (ISO 8601, UTC) of the value of a datetime-local field; "" for none. */
export function fromLocal(text) {
  const shown = Date.parse(text ? `${text}Z` : "");
  if (Number.isNaN(shown)) return "";
  // Twice: the first guess may lie on the other side of a time change.
  let at = shown;
  for (let turn = 0; turn < 2; turn += 1) at += shown - localTime(at);
  return new Date(at).toISOString();
}
