-- Executes the calls of one node, each about a name of its own.
--
-- KEYS  the single-holder keys of all names, guard, token, see below; then of each name 1 permits: sorted set, ticket -> deadline   2 queue: sorted
--       set, ticket -> arrival   3 meta: hash, see below. In a cluster: only these three, of one name.
-- ARGV  1 node   2 lease in ms   3 an hour and two leases, as text since converting numbers is slow   4 count of names
--       5 packed, for each name a letter; number of the call (0 = administrative, of no node), limit; then
--         A R T  one ticket to acquire, release, try: its number, and as text with the length before it
--         O      any others: how many tickets to release, renew, acquire, try; these tickets as text, each with its length
--                before it. The text is the number, or the whole ticket in an administrative call
-- reply of all names, one after the other, as one string. Each starts with a letter:
--       s  stale: a later call of this node was executed before, nothing was changed
--       e  error: length, text. If there is only one name, the error itself is returned instead
--       f  single-holder form, free: letters
--       o  single-holder form, one permit: token, letters
--       g  general form: permits in use, queued, call again in ms or -1, last token, 1 if a push was refused, count of
--          grants, letters; then for each queued ticket of this node that was granted: ticket, token
--       letters: for each released ticket 1 permit, 2 queue entry, 0 nothing; for each other one h held, w queued, r refused,
--       g gone
--
-- meta  state: what every call needs. gaps: what is also needed while a gap counts, else absent. And a field per node: number
--       of its last call, limit, lease, last heartbeat, how many of its tickets are queued. All of it is packed, and short
--       enough (64 bytes) for a small hash to be stored compactly.
--
-- single-holder record, instead of the three other keys while only one node has called and has one permit at most; packed:
--       'lone', number of the node's last call, its limit, its lease, lease clock, TIME when it was read, last token,
--       number of the held ticket or -1, its deadline; then the node.
--
-- guard (one for each node) and token (one for all): a batch that releases a permit in the single-holder form deletes the
--       record. For one lease the number of that call stays here, so that a late call is known by its lower number; and the
--       highest token of a deleted record, so that later tokens are above it, with the TIME at which this key expires.
--
-- An error half-way leaves a valid state: a permit is added before it is removed from the queue, meta is written last. The
-- first write is one that passes when memory is full (ZREM, PEXPIRE); after it, so does the rest.
local node, lease_text, hour_text, names = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local lease = tonumber(lease_text)
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)
local floor = 0 -- all tokens of names without keys are above it

