"""redis-py's Lock: SET NX PX and a script that compares and deletes, on one server.

The asyncio front, one client with its pool shared by all lockers, a lock object per use, `async
with`: as its documentation shows it. Threads with the synchronous front were slower.
hiredis is installed, as the documentation advises.
"""

import asyncio
import sys

import redis.asyncio

import common


async def main(given):
    if len(given.nodes) != 1:
        sys.exit("redis-py's Lock knows one server only")
    ((host, port),) = given.nodes
    client = redis.asyncio.Redis(host=host, port=int(port), max_connections=given.concurrency + 1)

    def lock(key):
        return client.lock(key, timeout=common.TTL_S)

    await common.measure(given, lock)
    await client.aclose()


asyncio.run(main(common.arguments()))
