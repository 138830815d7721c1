-- exchange_uncontended(state, read): reads a name, and executes the call if no ticket is queued, there is room, and nothing has to be tidied up.
-- Otherwise returns nil and the state of the call: with what was read, or unchanged if a record has an unknown format. All reads come before
-- the first write, so that a foreign key causes an error before anything was changed.

local call, pack, node = redis.call, struct.pack, ARGV[1]
local key, tickets, number, limit = state.key, state.tickets, state.number, state.limit
local permits, queue, meta = KEYS[key - 2], KEYS[key - 1], KEYS[key]
local releases, renews, wanted = state.releases, state.renews, state.acquires + state.tries
local owner = number > 0 and node .. '-' or '' -- what a ticket starts with
read = read or call('HMGET', meta, STATE_FIELD, node)
local known, own = read[1], read[2]
local clock, read_at, token, shortest, longest, expires, sweep_at, mute, busy = now, now, token_floor, lease, lease, 0, now + lease, 0, 0
local version, latest, own_queued, _ = FORMAT_VERSION, 0, 0, nil
if known then
  version = nil
  if #known == STATE_BYTES then version, clock, read_at, token, shortest, longest, expires, sweep_at, mute, busy = struct.unpack(STATE, known) end
end
if own and version == FORMAT_VERSION then
  version = nil
  if #own == NODE_BYTES then version, latest, _, _, _, own_queued = struct.unpack(NODE, own) end
end
if version ~= FORMAT_VERSION then
  state.is_unknown = true
  return nil, state
end
if number < latest then return 's' end
local in_use, queued = call('ZCARD', permits), 0
if busy > 0 or not known or in_use - releases + wanted > limit then queued = call('ZCARD', queue) end
-- The keys of an idle name may be gone, whatever the state contains.
if in_use == 0 and queued == 0 then expires = 0 end
local passed = now > read_at and now - read_at or 0
clock = clock + passed
-- Holders may have been unable to call: after a stall, a step of the server's clock, or a time without calls.
local gapped = not known or passed > shortest / 2

if key > 3 and not known and in_use == 0 and queued == 0 and number > 0 and renews == 0 and wanted < 2 then return nil, state end
