"""What redis_py.py and pottery.py share: the arguments, the two workloads, the report.

The protocol is described in ../src/rivals.rs, which runs these programs.
"""

import argparse
import asyncio
import json
import math
import os
import resource
import sys
import threading
import time

TTL_S = 10

# Interpreters slow down and connections open in the first moments; these are not measured.
WARM_UP_S = 0.5


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", required=True, help="host:port,host:port,…")
    parser.add_argument("--workload", choices=["pairs", "handover"], required=True)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--key", default="bench-rival")
    parser.add_argument("--hold-ms", type=float, default=5.0)
    given = parser.parse_args()
    if given.concurrency < 1 or given.seconds <= 0:
        parser.error("--concurrency and --seconds must be above zero")
    given.nodes = [tuple(node.rsplit(":", 1)) for node in given.nodes.split(",")]
    end_with_parent(given.seconds)
    return given


def end_with_parent(seconds):
    """Ends this program some time after it should have ended, whatever it is stuck in."""
    watchdog = threading.Timer(seconds + 20, lambda: os._exit(3))
    watchdog.daemon = True
    watchdog.start()


def measure(given, pair, acquire_and_release):
    """Runs the chosen workload and prints its report.

    pair(locker) acquires and releases that locker's own key once. acquire_and_release(hold)
    does so with the shared key and awaits hold() in between. Both are coroutine functions.
    """
    if given.workload == "pairs":
        return pairs(given, pair)
    return handover(given, acquire_and_release)


async def pairs(given, pair):
    took = []
    measuring = stopped = False

    async def locker(number):
        while not stopped:
            started = time.perf_counter()
            await pair(number)
            if measuring:
                took.append(time.perf_counter() - started)

    lockers = asyncio.gather(*(locker(number) for number in range(given.concurrency)))
    await sleep_beside(lockers, WARM_UP_S)
    cpu, since = cpu_seconds(), time.perf_counter()
    measuring = True
    await sleep_beside(lockers, given.seconds)
    measuring = False
    cpu, lasted = cpu_seconds() - cpu, time.perf_counter() - since
    stopped = True
    await lockers
    if not took:
        sys.exit("no pair ended within the time")
    took.sort()
    report(
        pairs=len(took),
        seconds=lasted,
        cpu_seconds=cpu,
        p50_us=percentile(took, 0.50) * 1e6,
        p99_us=percentile(took, 0.99) * 1e6,
    )


async def sleep_beside(lockers, seconds):
    """Sleeps, unless a locker fails: then its exception ends the program with a message."""
    await asyncio.wait([lockers], timeout=seconds)
    if lockers.done():
        lockers.result()


async def handover(given, acquire_and_release):
    holds = []
    hold_s = given.hold_ms / 1000

    async def hold():
        acquired = time.monotonic_ns()
        await asyncio.sleep(hold_s)
        # Taken right before the caller calls release.
        holds.append((acquired, time.monotonic_ns()))

    ready = time.monotonic_ns()
    end = ready + int(given.seconds * 1e9)
    while time.monotonic_ns() < end:
        await acquire_and_release(hold)
    report(ready_ns=ready, done_ns=time.monotonic_ns())
    for acquired, released in holds:
        report(acquired_ns=acquired, release_called_ns=released)


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentile(ordered, share):
    """The smallest value that at least this share of all values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def report(**line):
    print(json.dumps(line, separators=(",", ":")))
