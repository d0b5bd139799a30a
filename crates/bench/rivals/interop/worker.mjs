// Lock libraries of Node.js behind the protocol that worker.py describes: worker.mjs LIBRARY HOST:PORT,…
// The current folder has the node_modules.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const PATIENCE_MS = 1000;

const require = createRequire(`${process.cwd()}/`);
const [name, list] = process.argv.slice(2);
const nodes = list.split(",").map((node) => {
  const [host, port] = node.split(":");
  return { host, port: Number(port) };
});

async function connected(clients) {
  await Promise.all(clients.map((client) => once(client, "ready")));
  return clients;
}

async function ioredis() {
  const { Redis } = require("ioredis");
  return connected(nodes.map((node) => new Redis(node)));
}

// A library reports a refusal as an error of a special class.
const unless = (isRefusal) => (error) => {
  if (!isRefusal(error)) throw error;
};

async function redlock4() {
  const redis = require("redis3");
  const Redlock = require("redlock4");
  const clients = await connected(nodes.map(({ host, port }) => redis.createClient(port, host)));
  const redlock = new Redlock(clients);
  return {
    acquire: (key, ttl) =>
      redlock.lock(key, ttl).catch(unless((error) => error.name === "LockError")),
    release: (lock) => lock.unlock(),
  };
}

function redlock5(Redlock, isRefusal) {
  return async () => {
    const redlock = new Redlock(await ioredis());
    redlock.on("error", () => {});
    return {
      acquire: (key, ttl) => redlock.acquire([key], ttl).catch(unless(isRefusal)),
      release: (lock) => lock.release(),
    };
  };
}

const noQuorum = (error) => /quorum/.test(error.message);

async function universal() {
  const { createRedlock, IoredisAdapter } = require("redlock-universal");
  const adapters = (await ioredis()).map((client) => new IoredisAdapter(client));
  return {
    acquire: async (key, ttl) => {
      const lock = createRedlock({ adapters, key, ttl });
      const refused = unless((error) => error.name === "LockAcquisitionError");
      const handle = await lock.acquire().catch(refused);
      return handle && { lock, handle };
    },
    release: ({ lock, handle }) => lock.release(handle),
  };
}

async function semaphore() {
  const { RedlockMutex, TimeoutError } = require("redis-semaphore");
  const clients = await ioredis();
  return {
    acquire: async (key, lockTimeout) => {
      const mutex = new RedlockMutex(clients, key, { lockTimeout, acquireTimeout: PATIENCE_MS });
      const refused = (error) => error instanceof TimeoutError;
      return mutex.acquire().then(() => mutex, unless(refused));
    },
    release: (mutex) => mutex.release(),
  };
}

const libraries = {
  redlock4,
  redlock5: redlock5(require("redlock5").default, noQuorum),
  "@sesamecare-oss/redlock": redlock5(require("@sesamecare-oss/redlock").Redlock, noQuorum),
  "redlock-universal": universal,
  "redis-semaphore": semaphore,
};

const library = await libraries[name]();
const held = new Map();

async function answer(verb, key, ttl) {
  if (verb === "release") {
    const lock = held.get(key);
    held.delete(key);
    await library.release(lock);
    return "released";
  }
  const lock = await library.acquire(key, Number(ttl));
  if (lock) held.set(key, lock);
  return lock ? "held" : "refused";
}

// An error in a library's timer, such as after the loss of a lock, must not end the program.
process.on("uncaughtException", (error) => console.error(`${error}`));
process.on("unhandledRejection", (error) => console.error(`${error}`));
console.log(`ready ${JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version}`);
for await (const line of createInterface({ input: process.stdin })) {
  const failed = (error) => `failed ${error.name}: ${error.message}`.replaceAll("\n", " ");
  console.log(await answer(...line.split(" ")).catch(failed));
}
process.exit(0);
