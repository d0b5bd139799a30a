"""pottery's AIORedlock: Redlock over independent servers.

One client with its pool per server, shared by all lockers, and, as pottery's documentation
advises, a new lock object per use. Its synchronous Redlock starts a thread per server and
operation, and was slower.
"""

import asyncio
import sys
from pathlib import Path

# This file bears the name of the library it uses: the library must be found, not this file.
here = str(Path(__file__).resolve().parent)
sys.path.remove(here)
import redis.asyncio  # noqa: E402
from pottery import AIORedlock  # noqa: E402

sys.path.insert(0, here)
import common  # noqa: E402


async def main(given):
    # AIORedlock returns at the majority while its other commands are still under way, so that it
    # uses more connections than it has lockers.
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
