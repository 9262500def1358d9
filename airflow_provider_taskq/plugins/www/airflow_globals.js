/** The globals that Airflow provides to plugins: React, Chakra in Airflow's theme, its router, its time zone. */
export const React = globalThis.React;
export const UI = globalThis.ChakraUI;
export const { Link, useLocation, useNavigate, useSearchParams } = globalThis.ReactRouterDOM;
export const { createContext, Fragment, useCallback, useContext, useEffect, useId, useMemo, useRef, useState } = React;
export const h = React.createElement;

/** The time zone that the user chose in Airflow's navigation, else the browser's. */
export function timeZone() {
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  try {
    return JSON.parse(localStorage.getItem("timezone")) || own;
  } catch {
    return own;
  }
}

/** A link inside Airflow, in the color of its links. */
export function To({ to, children, ...props }) {
  return h(UI.Link, { asChild: true, color: "fg.info", display: "inline", ...props }, h(Link, { to }, children));
}
