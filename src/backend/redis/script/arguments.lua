-- Executes the calls of one node, each about a name of its own.
--
-- Three parts, each with an early return: the fast path, the uncontended path of the general form, and everything else. Each execution
-- creates every function that it passes, and each variable that a function captures costs as much as 20 instructions. So the parts are straight
-- code, functions are few and after the early return that makes them unnecessary, and they get a `state` rather than capture variables.
-- Constants are free: `script.rs` replaces each name in capital letters by its value.
--
-- KEYS  the single-holder keys of all names, guard, token; then for each name the three keys of the general form. In a cluster: only
--       these three, of one name.
-- ARGV  1 node   2 lease in ms   3 an hour and two leases in ms, as text because converting numbers is slow   4 count of names
--       5 packed, for each name a letter; number of the call (0 = administrative, of no node), limit; then
--         A R T  one ticket to acquire, release, try: its number, and as text after its length
--         O      any others: counts of tickets to release, renew, acquire, try; these tickets as text, each after its length. The
--                text is the number, or the whole ticket in an administrative call
-- reply of all names, one after the other, as one string. Each starts with a letter:
--       s  stale: a later call of this node was executed before, nothing was changed
--       e  error: length, text. If there is only one name, the error itself is returned instead
--       f  single-holder form, free: letters
--       o  single-holder form, one permit: token, letters
--       g  general form: permits in use, queued, call again in ms or -1, last token, 1 if a push was refused, count of
--          grants, letters; then for each queued ticket of this node that was granted: ticket, token
--       letters: for each released ticket 1 permit, 2 queue entry, 0 nothing; for each other one h held, w queued, r refused,
--       g gone
local GENERAL_ANSWER = '<c1dddddHc0'
local HOUR = 3600000

local call, pack, unpack_record, sub, byte = redis.call, struct.pack, struct.unpack, string.sub, string.byte
local node, lease_text, lifetime_text, names, data = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local lease = tonumber(lease_text)
local has_single = #KEYS > 3 * names
local general_keys = has_single and names + 2 or 0 -- the keys before those of the general form
