// redlock for Node.js: version 4 with node-redis 3, the client of its documentation's example, and
// the beta of version 5 with ioredis, for which it is written.
//
// One client per server, one Redlock shared by all lockers, each locker a chain of promises. The
// options are the documented defaults, except that handing over a lock needs unlimited retries.
// The protocol is described in ../src/rivals.rs, which runs this program, with the folder that has
// the node_modules as its current folder.

import { once } from "node:events";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

const TTL_MS = 10_000;

// Code is compiled and connections open during this time, which is not measured.
const WARM_UP_MS = 500;

const require = createRequire(`${process.cwd()}/`);

function fail(message) {
  console.error(message);
  process.exit(1);
}

const { values } = parseArgs({
  options: {
    library: { type: "string" },
    nodes: { type: "string" },
    workload: { type: "string" },
    concurrency: { type: "string", default: "1" },
    seconds: { type: "string", default: "1" },
    key: { type: "string", default: "bench-rival" },
    "hold-ms": { type: "string", default: "5" },
  },
});
const concurrency = Number(values.concurrency);
const seconds = Number(values.seconds);
const holdMs = Number(values["hold-ms"]);
if (!values.nodes || !(concurrency >= 1) || !(seconds > 0) || !(holdMs >= 0)) {
  fail("--nodes is needed; numbers must be above zero");
}
const nodes = values.nodes.split(",").map((node) => {
  const colon = node.lastIndexOf(":");
  return { host: node.slice(0, colon), port: Number(node.slice(colon + 1)) };
});

async function redlock4() {
  const redis = require("redis3");
  const Redlock = require("redlock4");
  const clients = nodes.map(({ host, port }) => redis.createClient(port, host));
  await Promise.all(clients.map((client) => once(client, "ready")));
  const redlock = new Redlock(clients, { retryCount: -1 });
  redlock.on("clientError", (error) => fail(`redlock 4: ${error}`));
  return {
    acquire: (key) => redlock.lock(key, TTL_MS),
    release: (lock) => lock.unlock(),
  };
}

async function redlock5() {
  const { Redis } = require("ioredis");
  const { default: Redlock, ResourceLockedError } = require("redlock5");
  const clients = nodes.map(({ host, port }) => new Redis({ host, port }));
  await Promise.all(clients.map((client) => once(client, "ready")));
  const redlock = new Redlock(clients, { retryCount: -1 });
  // A lock that another locker holds is no error here.
  redlock.on("error", (error) => {
    if (!(error instanceof ResourceLockedError)) fail(`redlock 5: ${error}`);
  });
  return {
    acquire: (key) => redlock.acquire([key], TTL_MS),
    release: (lock) => lock.release(),
  };
}

// The smallest value that at least this share of all values does not exceed.
function percentile(ordered, share) {
  return ordered[Math.max(0, Math.ceil(share * ordered.length) - 1)];
}

function cpuSeconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

async function pairs({ acquire, release }) {
  // Ends this program 20 s after its time, even if it hangs.
  setTimeout(() => process.exit(3), (seconds + 20) * 1000).unref();
  const took = [];
  let measuring = false;
  let stopped = false;

  async function locker(number) {
    const key = `${values.key}:${number}`;
    while (!stopped) {
      const started = performance.now();
      await release(await acquire(key));
      if (measuring) took.push(performance.now() - started);
    }
  }

  const lockers = Promise.all(Array.from({ length: concurrency }, (_, number) => locker(number)));
  lockers.catch((error) => fail(`${error}`));
  await sleep(WARM_UP_MS);
  const cpuBefore = cpuSeconds();
  const since = performance.now();
  measuring = true;
  await sleep(seconds * 1000);
  measuring = false;
  const lasted = (performance.now() - since) / 1000;
  const cpu = cpuSeconds() - cpuBefore;
  stopped = true;
  await lockers;
  if (took.length === 0) fail("no pair ended within the time");
  took.sort((a, b) => a - b);
  const report = {
    pairs: took.length,
    seconds: lasted,
    cpu_seconds: cpu,
    p50_us: percentile(took, 0.5) * 1000,
    p99_us: percentile(took, 0.99) * 1000,
    p999_us: percentile(took, 0.999) * 1000,
  };
  console.log(JSON.stringify(report));
}

async function handover({ acquire, release }) {
  // Nanoseconds, which a number holds exactly while the machine is up for less than 104 days.
  const now = () => Number(process.hrtime.bigint());
  // This first pair opens the connections.
  await release(await acquire(`${values.key}:${process.pid}`));
  const end = await awaitGo();
  const turns = [];
  for (let asked = now(); asked < end; asked = now()) {
    const left = new AbortController();
    const lock = await Promise.race([
      acquire(values.key),
      sleep((end - asked) / 1e6, null, { signal: left.signal }).catch(() => null),
    ]);
    left.abort();
    if (lock === null) {
      turns.push([asked, null, null]);
      break;
    }
    const acquired = now();
    await sleep(holdMs);
    const released = now();
    await release(lock);
    turns.push([asked, acquired, released]);
  }
  const told = turns.map((turn) => `${JSON.stringify(turn)}\n`).join("");
  await new Promise((done) => process.stdout.write(told, done));
}

// Prints `ready` and waits for `go`. Returns the end of the work.
async function awaitGo() {
  process.stdin.setEncoding("utf8");
  // If the input ends, before or after `go`, the benchmark has ended, so this program must end too.
  process.stdin.on("end", () => fail("the benchmark is gone"));
  process.stdout.write("ready\n");
  const [order] = await once(process.stdin, "data");
  process.stdin.resume();
  const end = Number(/^go (\d+)\s*$/.exec(order)?.[1]);
  return end > 0 ? end : fail(`not an order: ${order}`);
}

const libraries = { redlock4, redlock5 };
const workloads = { pairs, handover };
if (!Object.hasOwn(libraries, values.library ?? "")) fail("--library: redlock4 or redlock5");
if (!Object.hasOwn(workloads, values.workload ?? "")) fail("--workload: pairs or handover");
try {
  await workloads[values.workload](await libraries[values.library]());
} catch (error) {
  fail(`${error}`);
}
// The clients' open connections would keep the program alive.
process.exit(0);
