// The given number of tasks lock and unlock one name, and hold it for one turn of the event loop. Prints pairs a second.
const Redis = require('ioredis')

const [library, url, ...numbers] = process.argv.slice(2)
const [tasks, warmUp, window] = numbers.map(Number)
const sleep = (millis) => new Promise((done) => setTimeout(done, millis))
const turn = () => new Promise((done) => setImmediate(done))
const client = new Redis(url)

// Each returns a function that locks, which returns one that unlocks. The settings are the defaults, but no task gives up.
const libraries = {
  'redis-semaphore': () => {
    const { Mutex } = require('redis-semaphore')
    return async () => {
      const mutex = new Mutex(client, 'hot', { acquireTimeout: Number.MAX_SAFE_INTEGER })
      await mutex.acquire()
      return () => mutex.release()
    }
  },
  redlock: () => {
    const Redlock = require('redlock')
    const redlock = new Redlock([client], { retryCount: -1 })
    return async () => {
      const lock = await redlock.lock('hot', 10000)
      return () => lock.unlock()
    }
  },
}

let pairs = 0
const work = async (lock) => {
  for (;;) {
    const unlock = await lock()
    await turn()
    await unlock()
    pairs += 1
  }
}

const main = async () => {
  const lock = libraries[library]()
  for (let n = 0; n < tasks; n += 1) work(lock).catch((error) => { console.error(error); process.exit(1) })
  await sleep(warmUp)
  const [before, start] = [pairs, process.hrtime.bigint()]
  await sleep(window)
  const seconds = Number(process.hrtime.bigint() - start) / 1e9
  process.stdout.write(`${(pairs - before) / seconds}\n`, () => process.exit(0))
}

main()
