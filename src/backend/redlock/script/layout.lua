-- Layout of what one server stores about a name. Every script includes this file. A value in another form is refused and not changed.
--
-- lock    `version node ticket attempt token`. A token of 0: not confirmed, no permit yet. An attempt is even; once the lock was renewed it is
--         odd, and no rollback matches it any more.
-- fence   `version number attempt` of the latest call of a node. An older call changes nothing.
-- marker  `created longest`: since when this server has remembered (µs), and the longest lease that it has received (ms).
-- token   the highest token, while it may be ahead of this server's clock.
local FORMAT_VERSION = '1'
local LOCK = '^' .. FORMAT_VERSION .. ' (%S+) (%d+) (%d+) (%d+)$'
local FENCE = '^' .. FORMAT_VERSION .. ' (%d+) (%d+)$'
local MARKER = '^(%d+) (%d+)$'
