/**
 * TaskQ inside Airflow: the module that Airflow loads, for the page and for the panel of a task instance.
 *
 * Nothing is built: these files are what the browser runs. Airflow hands out React, its router and Chakra in its own
 * theme as globals (see airflow_globals.js), takes the component by its name from `globalThis`, and imports a module once only: so
 * both names are set here.
 */
const TOO_OLD = "The TaskQ page needs the Chakra components that Airflow hands out to plugins, and this Airflow has none.";

async function components() {
  if (!globalThis.ChakraUI || !globalThis.ReactRouterDOM) {
    const Sorry = () => globalThis.React.createElement("p", { role: "alert" }, TOO_OLD);
    return { Page: Sorry, Panel: Sorry };
  }
  const [{ Page }, { Panel }] = await Promise.all([import("./page.js"), import("./panel.js")]);
  return { Page, Panel };
}

const { Page, Panel } = await components();
globalThis.TaskQ = Page;
globalThis["TaskQ tasks"] = Panel;
globalThis.AirflowPlugin = Page;
