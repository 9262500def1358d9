/** Numbers, durations and moments as people read them. */
import { localParts } from "./time_zone.js";

const DIGITS = new Intl.NumberFormat("en");

export const number = (value) => DIGITS.format(value);

/** The actor that the client named, and the database role that the database recorded: alice via role airflow. */
export function person(actor, role) {
  if (!role) return actor;
  return actor ? `${actor} via role ${role}` : `role ${role}`;
}

/** A count; one that stopped at its cap as 10,000+. */
export function count(counted) {
  if (counted === null || counted === undefined) return "–";
  return typeof counted === "number" ? number(counted) : number(counted.count) + (counted.capped ? "+" : "");
}

/** A count without its cap. */
export const atLeast = (counted) => (typeof counted === "number" ? counted : (counted?.count ?? 0));

export const plural = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

/** A duration in seconds, with two units at most: 3 h 20 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) {
    const minutes = Math.floor((s % 3600) / 60);
    return `${Math.floor(s / 3600)} h${minutes ? ` ${minutes} min` : ""}`;
  }
  return `${Math.floor(s / 86400)} days`;
}

/** A duration in seconds, with two digits below ten seconds: 40 ms, 1.2 s. */
export function elapsed(seconds) {
  const thousandths = Math.max(0, Math.round(seconds * 1000));
  if (thousandths < 1000) return `${thousandths} ms`;
  return thousandths < 9950 ? `${Number((thousandths / 1000).toFixed(1))} s` : duration(Math.round(seconds));
}

/** Queue time and run time of an attempt: waited 3 s · ran 1.2 s; null if no attempt was polled. */
export function attemptTimes({ waited_seconds: waited, ran_seconds: ran }, verb = "ran") {
  const words = [waited === null ? null : `waited ${elapsed(waited)}`, ran === null ? null : `${verb} ${elapsed(ran)}`];
  return words.filter(Boolean).join(" · ") || null;
}

/** A size in bytes. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1024) return `${value} B`;
  return value < 1048576 ? `${(value / 1024).toFixed(1)} KiB` : `${(value / 1048576).toFixed(1)} MiB`;
}

/** A moment in the time zone that Airflow shows: 2026-11-21 10:02:24, as Airflow writes it. */
export function moment(iso) {
  if (!iso) return "–";
  const p = localParts(iso);
  return `${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second}`;
}

/** The time of day of a moment. */
export function clock(iso) {
  if (!iso) return "–";
  const p = localParts(iso);
  return `${p.hour}:${p.minute}:${p.second}`;
}

/** The distance of a moment from another: 5 min ago, in 3 h. */
export function distance(iso, from) {
  const seconds = (new Date(iso) - new Date(from)) / 1000;
  return seconds >= 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
}

/** A word or sentence with a capital letter and a full stop. */
export function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}
