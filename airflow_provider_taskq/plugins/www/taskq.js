/**
 * The module that Airflow loads for the page and for the panel of a task instance.
 *
 * There is no build step: the browser runs these files. Airflow provides React, its router and Chakra as globals (see
 * airflow_globals.js). It imports a module only once and takes the component by its name from `globalThis`, so this
 * module sets both names.
 */
const TOO_OLD =
  "The TaskQ page needs the Chakra components that Airflow hands out to plugins, and this Airflow has none.";

async function components() {
  if (!globalThis.ChakraUI || !globalThis.ReactRouterDOM) {
    const TooOld = () => globalThis.React.createElement("p", { role: "alert" }, TOO_OLD);
    return { Page: TooOld, Panel: TooOld };
  }
  const [{ Page }, { Panel }] = await Promise.all([import("./page.js"), import("./panel.js")]);
  return { Page, Panel };
}

const { Page, Panel } = await components();
globalThis.TaskQ = Page;
globalThis["TaskQ tasks"] = Panel;
globalThis.AirflowPlugin = Page;
