"""Lock libraries of Python behind one protocol, for `cargo xtask interop`: worker.py LIBRARY HOST:PORT,HOST:PORT,…

The program prints `ready VERSION` and answers each line of its input with one line:

    acquire KEY TTL_MS   held | refused | failed TEXT      one call with the library's default options
    release KEY          released | failed TEXT

A library that waits without limit by default gets a limit of PATIENCE_S, so that a refusal becomes visible.
"""

import asyncio
import importlib.metadata
import sys

PATIENCE_S = 1


class RedlockPy:
    package = "redlock-py"

    def __init__(self, nodes):
        from redlock import Redlock

        manager = Redlock([{"host": host, "port": port} for host, port in nodes])
        self.acquire, self.release = manager.lock, manager.unlock


class LockObject:
    """A library whose lock objects have a method `release`."""

    def release(self, lock):
        lock.release()


class Redlock(LockObject):
    package = "redlock"

    def __init__(self, nodes):
        from redlock import RedLockFactory

        self.factory = RedLockFactory([{"host": host, "port": port} for host, port in nodes])

    def acquire(self, key, ttl_ms):
        lock = self.factory.create_lock(key, ttl=ttl_ms)
        return lock if lock.acquire() else None


class RedlockNg:
    package = "redlock-ng"

    def __init__(self, nodes):
        from redlock import Redlock

        manager = Redlock([f"redis://{host}:{port}/0" for host, port in nodes])
        self.acquire, self.release = manager.acquire, manager.release


class Pottery(LockObject):
    package = "pottery"

    def __init__(self, nodes):
        from redis import Redis

        self.masters = {Redis(host=host, port=port) for host, port in nodes}

    def acquire(self, key, ttl_ms):
        from pottery import Redlock

        lock = Redlock(key=key, masters=self.masters, auto_release_time=ttl_ms / 1000)
        return lock if lock.acquire(timeout=PATIENCE_S) else None


class RedisPy(LockObject):
    package = "redis"

    def __init__(self, nodes):
        from redis import Redis

        ((host, port),) = nodes
        self.client = Redis(host=host, port=port)

    def acquire(self, key, ttl_ms):
        lock = self.client.lock(key, timeout=ttl_ms / 1000)
        return lock if lock.acquire(blocking_timeout=PATIENCE_S) else None


class PythonRedisLock(RedisPy):
    package = "python-redis-lock"

    def acquire(self, key, ttl_ms):
        from redis_lock import Lock

        lock = Lock(self.client, key, expire=round(ttl_ms / 1000))
        return lock if lock.acquire(timeout=PATIENCE_S) else None


class Aioredlock:
    package = "aioredlock"

    def __init__(self, nodes):
        from aioredlock import Aioredlock

        self.manager = Aioredlock([{"host": host, "port": port} for host, port in nodes])
        self.loop = asyncio.new_event_loop()

    def acquire(self, key, ttl_ms):
        from aioredlock import LockError

        try:
            return self.loop.run_until_complete(self.manager.lock(key, ttl_ms / 1000))
        except LockError:
            return None

    def release(self, lock):
        self.loop.run_until_complete(self.manager.unlock(lock))


LIBRARIES = [RedlockPy, Redlock, RedlockNg, Pottery, RedisPy, PythonRedisLock, Aioredlock]


def main(package, nodes):
    nodes = [node.split(":") for node in nodes.split(",")]
    (library,) = (library for library in LIBRARIES if library.package == package)
    library = library([(host, int(port)) for host, port in nodes])
    held = {}

    def answer(verb, key, *ttl_ms):
        if verb == "release":
            library.release(held.pop(key))
            return "released"
        lock = library.acquire(key, int(*ttl_ms))
        if lock:
            held[key] = lock
        return "held" if lock else "refused"

    print("ready", importlib.metadata.version(package), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(*line.split())
        except Exception as error:
            reply = f"failed {type(error).__name__}: {error}".replace("\n", " ")
        print(reply, flush=True)


main(*sys.argv[1:])
