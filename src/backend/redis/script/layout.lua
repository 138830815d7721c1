-- Layout of everything that is stored. Every script includes this file; a test compares it with the constants of `keys.rs`.

-- The first byte of every record. A record that starts with another one, or that has another length, is refused and not changed.
local FORMAT_VERSION = 1

-- Keys of a name: `prefix:kind:{name}` is a sorted set, ticket -> deadline of the permit. With a suffix:
local QUEUE_SUFFIX = ':queue' -- sorted set, ticket -> arrival
local META_SUFFIX = ':meta' -- hash: one state record, sometimes one gaps record, and one record for each node
local SINGLE_SUFFIX = ':single' -- string: the single-holder record, which replaces the three other keys
-- Keys of no name, and the channels. They start with the prefix, then:
local GUARD_INFIX = ':guard:' -- string; the node follows
local TOKEN_SUFFIX = ':token' -- string
local PUSH_INFIX = ':push:' -- channel; the node follows

-- Fields of the hash. Every other field is the name of a node. A record has at most 64 bytes, so that a small hash is stored compactly.
local STATE_FIELD = 'state'
local GAPS_FIELD = 'gaps'

-- version, lease clock, TIME when it was read, last token, shortest and longest lease, TIME at which the first key expires, lease clock at
-- the next sweep, mute (1: a push was refused), busy (0: no ticket is queued and no gap counts, 1: a ticket is queued, 2: a gap counts)
local STATE = '<BdddddddBB'
local STATE_BYTES = 59
-- version, number of its last call, limit, lease, lease clock at its last heartbeat, count of its queued tickets
local NODE = '<Bddddd'
local NODE_BYTES = 41
-- While a gap counts. version, end of the grace, deadlines to purge then, last gap, longest grace of gaps since
local GAPS = '<Bdddd'
local GAPS_BYTES = 33
-- version, number of the node's last call, its limit, its lease, lease clock, TIME when it was read, last token, number of the held ticket
-- or FREE, its deadline, node with its length
local SINGLE = '<BddddddddHc0'
local SINGLE_BYTES = 67 -- without the node
local FREE = -1
-- For one lease after a batch has deleted single-holder records: version, number of that call
local GUARD = '<Bd'
local GUARD_BYTES = 9
-- For as long: version, highest token of a deleted record, TIME at which this key expires
local TOKEN = '<Bdd'
local TOKEN_BYTES = 17
