"""The given number of tasks lock and unlock one name, and hold it for one turn of the event loop. Prints pairs a second."""

import asyncio
import os
import sys
import time

from redis.asyncio import Redis

url = sys.argv[1]
tasks, warm_up, window = (int(number) for number in sys.argv[2:])
pairs = 0


async def work(client):
    global pairs
    while True:
        async with client.lock("hot", timeout=10):
            await asyncio.sleep(0)
        pairs += 1


async def main():
    client = Redis.from_url(url, max_connections=tasks)
    running = [asyncio.create_task(work(client)) for _ in range(tasks)]
    await asyncio.sleep(warm_up / 1000)
    before, start = pairs, time.monotonic()
    await asyncio.sleep(window / 1000)
    rate = (pairs - before) / (time.monotonic() - start)
    for task in running:
        if task.done():
            task.result()
    print(rate, flush=True)


asyncio.new_event_loop().run_until_complete(main())
os._exit(0)  # without awaiting the tasks
