"""pottery's AIORedlock: Redlock over independent servers.

One client with its pool per server, shared by all lockers, and, as pottery's documentation
advises, a new lock object per use. Its synchronous Redlock starts a thread per server and
operation, and was slower.
"""

import asyncio
import sys
from pathlib import Path

# This file has the same name as the library, so its folder must not be searched for the library.
here = str(Path(__file__).resolve().parent)
sys.path.remove(here)
import redis.asyncio  # noqa: E402
from pottery import AIORedlock  # noqa: E402

sys.path.insert(0, here)
import common  # noqa: E402


async def main(given):
    # AIORedlock returns when a majority has answered, while its other commands are still in flight. So it
    # uses more connections than there are lockers.
    limit = 8 * given.concurrency + 8
    masters = {
        redis.asyncio.Redis(host=host, port=int(port), max_connections=limit)
        for host, port in given.nodes
    }

    def lock(key):
        return AIORedlock(key=key, masters=masters, auto_release_time=common.TTL_S)

    await common.measure(given, lock)
    for master in masters:
        await master.aclose()


asyncio.run(main(common.arguments()))
