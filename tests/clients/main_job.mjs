// Plays the main job over stdio with the official TypeScript SDK.
//
// Arguments: the program, a fresh state directory. Ends with status 0 only if every step answered as it must.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [program, home] = process.argv.slice(2);

function check(what, condition, seen) {
  if (!condition) {
    console.error(`typescript: ${what}: ${JSON.stringify(seen)}`);
    process.exit(1);
  }
  console.log(`typescript: ${what}`);
}

const transport = new StdioClientTransport({ command: program, args: ["mcp"], env: { ...process.env, PGSANDBOX_HOME: home } });
const client = new Client({ name: "main-job", version: "1.0.0" });
await client.connect(transport);

async function call(name, args, ok = true) {
  // The SDK checks the answer against the tool's output schema.
  const answer = await client.callTool({ name, arguments: args });
  const envelope = answer.structuredContent;
  check(`${name} answers ${ok ? "ok" : "a failure"}`, envelope.ok === ok && Boolean(answer.isError) === !ok, envelope);
  return ok ? envelope.result : envelope.errors[0];
}

check("the server says who it is", client.getServerVersion().name === "pgsandbox", client.getServerVersion());
const { tools } = await client.listTools();
check("tools are listed", tools.length >= 12, tools.map((tool) => tool.name));
const made = await call("create_database", { nameHint: "typescript", ttlMinutes: 10 });
const here = { databaseId: made.databaseId };
await call("run_sql", { ...here, sql: "create table t (id bigint); insert into t select generate_series(1, 200)" });
const read = await call("run_sql", { ...here, sql: "select id from t order by id", readonly: true, rowLimit: 2 });
check("a read is bounded and exact", JSON.stringify(read.resultSets[0].rows) === '[["1"],["2"]]', read);
const error = await call("run_sql", { ...here, sql: "alter system set work_mem = '1GB'" }, false);
check("a policy refuses", error.code === "denied", error);
const control = new AbortController();
const sleeping = client.callTool({ name: "run_sql", arguments: { ...here, sql: "select pg_sleep(60)" } }, undefined, { signal: control.signal });
setTimeout(() => control.abort(), 300);
await sleeping.then(
  () => check("a cancelled call does not answer", false, null),
  () => check("a call can be cancelled", true, null),
);
// The backend stops within a second: nothing but this statement itself runs in the sandbox then.
await new Promise((resolve) => setTimeout(resolve, 1000));
const active = await call("run_sql", { ...here, sql: "select count(*)::int from pg_stat_activity where state = 'active' and datname = current_database() and pid <> pg_backend_pid()" });
check("the backend is idle within a second", active.resultSets[0].rows[0][0] === 0, active.resultSets[0]);
const gone = await call("delete_database", { ...here, wait: true });
check("the sandbox is deleted", gone.deleted === true, gone);
await client.close();
