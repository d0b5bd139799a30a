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

# Code warms up and connections open during this time, which is not measured.
WARM_UP_S = 0.5


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", required=True, help="host:port,host:port,…")
    parser.add_argument("--workload", choices=["pairs", "handover"], required=True)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--key", default="bench-rival")
    parser.add_argument("--hold-ms", type=float, default=5.0)
    given = parser.parse_args()
    if given.concurrency < 1 or given.seconds <= 0:
        parser.error("--concurrency and --seconds must be above zero")
    given.nodes = [tuple(node.rsplit(":", 1)) for node in given.nodes.split(",")]
    return given


def measure(given, lock):
    """Runs the chosen workload and prints its report. lock(key) makes a lock object."""
    return (pairs if given.workload == "pairs" else handover)(given, lock)


async def pairs(given, lock):
    # Ends this program 20 s after its time, even if it hangs.
    watchdog = threading.Timer(given.seconds + 20, lambda: os._exit(3))
    watchdog.daemon = True
    watchdog.start()
    took = []
    measuring = stopped = False

    async def locker(number):
        key = f"{given.key}:{number}"
        while not stopped:
            started = time.perf_counter()
            async with lock(key):
                pass
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
    report = {
        "pairs": len(took),
        "seconds": lasted,
        "cpu_seconds": cpu,
        "p50_us": percentile(took, 0.50) * 1e6,
        "p99_us": percentile(took, 0.99) * 1e6,
        "p999_us": percentile(took, 0.999) * 1e6,
    }
    print(json.dumps(report, separators=(",", ":")))


async def sleep_beside(lockers, seconds):
    """Sleeps, unless a locker fails: then its exception ends the program with a message."""
    await asyncio.wait([lockers], timeout=seconds)
    if lockers.done():
        lockers.result()


async def handover(given, lock):
    # This first pair opens the connections.
    async with lock(f"{given.key}:{os.getpid()}"):
        pass
    end = await_go()
    turns = []
    while (asked := time.monotonic_ns()) < end:
        mine = lock(given.key)
        try:
            await asyncio.wait_for(mine.acquire(), (end - asked) / 1e9)
        except asyncio.TimeoutError:
            turns.append((asked, None, None))
            break
        acquired = time.monotonic_ns()
        await asyncio.sleep(given.hold_ms / 1000)
        released = time.monotonic_ns()
        await mine.release()
        turns.append((asked, acquired, released))
    for turn in turns:
        print(json.dumps(turn, separators=(",", ":")))
    sys.stdout.flush()


def await_go():
    """Prints `ready` and waits for `go END`. Returns END, in nanoseconds of the monotonic clock."""
    print("ready", flush=True)
    word, _, end = sys.stdin.readline().strip().partition(" ")
    if word != "go":
        sys.exit("the benchmark is gone")

    def watch():
        sys.stdin.read()
        os._exit(1)

    # The benchmark sends nothing more. If it ends, this program must end too.
    threading.Thread(target=watch, daemon=True).start()
    return int(end)


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentile(ordered, share):
    """The smallest value that at least this share of all values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
