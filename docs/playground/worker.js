/**
 * PostgreSQL in a worker of the page, so that the page stays responsive.
 *
 * The page sends {id, kind: "start"} once, then {id, kind: "run", sql}. The worker answers {id, value} or {id, error},
 * and sends {progress} while it starts. All files come from the folder of this script.
 */
const MANIFEST = new URL("files/manifest.json", import.meta.url);

let database = null;
let parsers = null;

/** The bytes of a file, decompressed unless the server's Content-Encoding has done it. */
async function download(path, received) {
  const response = await fetch(new URL(path, MANIFEST));
  if (!response.ok) throw new Error(`${path} cannot be loaded: HTTP ${response.status}`);
  const chunks = [];
  for (const reader = response.body.getReader();;) {
    const { done, value } = await reader.read();
    if (done) break;
    chunks.push(value);
    received(value.byteLength);
  }
  const blob = new Blob(chunks);
  const magic = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
  if (magic[0] !== 0x1f || magic[1] !== 0x8b) return blob;
  return new Response(blob.stream().pipeThrough(new DecompressionStream("gzip"))).blob();
}

const compile = async (blob) => WebAssembly.compile(await blob.arrayBuffer());

async function start() {
  const manifest = await (await fetch(MANIFEST)).json();
  const { postgres, initdb, data, schema } = manifest.archives;
  const total = Object.values(manifest.archives).reduce((sum, { bytes }) => sum + bytes, 0);
  let loaded = 0;
  const received = (bytes) => {
    loaded += bytes;
    postMessage({ progress: { stage: "download", loaded, total } });
  };
  const [{ PGlite }, ...blobs] = await Promise.all([
    import(new URL(manifest.module, MANIFEST)),
    ...[postgres, initdb, data, schema].map(({ path }) => download(path, received)),
  ]);
  postMessage({ progress: { stage: "server" } });
  database = await PGlite.create({
    pgliteWasmModule: await compile(blobs[0]),
    initdbWasmModule: await compile(blobs[1]),
    fsBundle: blobs[2],
  });
  postMessage({ progress: { stage: "schema" } });
  await database.exec(await blobs[3].text());
  const { rows } = await database.query("SELECT oid FROM pg_type");
  parsers = Object.fromEntries(rows.map(({ oid }) => [oid, (text) => text])); // values as PostgreSQL prints them
  const [version] = await run("SHOW server_version");
  const [functions] = await run("SELECT count(*) FROM pg_proc WHERE pronamespace = 'taskq'::regnamespace");
  return { version: version.rows[0][0].split(" ")[0], functions: Number(functions.rows[0][0]) };
}

async function run(sql) {
  const results = await database.exec(sql, { rowMode: "array", parsers });
  return results.map(({ fields, rows, command, affectedRows }) => ({ fields, rows, command, affected: affectedRows }));
}

/** What the page shows of an error: PostgreSQL's fields, or the message alone. */
function described(error) {
  const { code, message, detail, hint } = error;
  return { code, message: message ?? String(error), detail, hint };
}

addEventListener("message", async ({ data: { id, kind, sql } }) => {
  try {
    postMessage({ id, value: kind === "start" ? await start() : await run(sql) });
  } catch (error) {
    postMessage({ id, error: described(error) });
  }
});
