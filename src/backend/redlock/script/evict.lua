-- Removes the lock if it is this ticket's.
--
-- KEYS  lock
-- ARGV  `node-ticket`
-- reply {lock, ms left}, or {'', 0} if it is not this ticket's

local function evict()
  local lock = read_lock(KEYS[1])
  if not lock or ARGV[1] ~= lock.node .. '-' .. lock.ticket then return {'', 0} end
  local left = call('PTTL', KEYS[1])
  call('DEL', KEYS[1])
  return {lock.value, left}
end

return attempt(evict)
