-- Writes the token into a lock that was acquired, and remembers the token. With `create` a lock that this server has lost is written again:
-- only for a ticket that is held by a majority.
--
-- KEYS  lock, token, fence of this node
-- ARGV  node, number, attempt, lease in ms, ticket, token, create (0 or 1)
-- reply 1, or 0 if the lock is not this ticket's

local function confirm()
  local node, ticket, token, lease = ARGV[1], ARGV[5], ARGV[6], tonumber(ARGV[4])
  if is_late(read_fence(KEYS[3]), tonumber(ARGV[2]), tonumber(ARGV[3])) then return 0 end
  local lock = read_lock(KEYS[1])
  if lock and lock.node == node and lock.ticket == ticket then
    call('SET', KEYS[1], lock_value(node, ticket, lock.attempt, token), 'KEEPTTL')
  elseif not lock and ARGV[7] == '1' then
    call('SET', KEYS[1], lock_value(node, ticket, ARGV[3], token), 'PX', ARGV[4])
  else
    return 0
  end
  -- A token ahead of this server's clock is remembered until the clock has passed it, so that the next one is higher.
  local last = math.max(tonumber(call('GET', KEYS[2]) or '0') or 0, tonumber(token))
  local ahead = math.max(0, math.ceil((last - micros()) / 1000))
  call('SET', KEYS[2], text(last), 'PX', text(lease + ahead))
  return 1
end

return attempt(confirm)
