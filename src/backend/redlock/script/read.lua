-- Reads the lock.
--
-- KEYS  lock
-- reply {lock or '', ms left}

local function read()
  local lock = read_lock(KEYS[1])
  if not lock then return {'', 0} end
  return {lock.value, call('PTTL', KEYS[1])}
end

return attempt(read)
