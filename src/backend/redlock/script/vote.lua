-- Executes one call of a node at one server, and returns the holder of the lock here: the node counts the votes.
--
-- KEYS  lock, token, fence of this node, marker of this server
-- ARGV  node, number, attempt, lease in ms, candidate or '', count of tickets to release, count of others (renew, then acquire), these tickets
-- reply {0} for a late call, else {1, age of the marker in ms, longest lease, released ticket or '', 1 if it was held, lock or '', ms left,
--       next token}

local node, number, attempt_number, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local candidate, releases, others = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local FIRST_TICKET = 8

local function names_ticket(ticket, first, count)
  for i = first, first + count - 1 do
    if ARGV[i] == ticket then return true end
  end
  return false
end

-- Returns since when this server has remembered, and the longest lease.
local function read_marker(now)
  local value = call('GET', KEYS[4])
  if not value then return now, 0 end
  local created, longest = string.match(value, MARKER)
  if not created then refuse(KEYS[4], value) end
  return math.min(now, tonumber(created)), tonumber(longest), value
end

local function vote()
  local now = micros()
  local fence = read_fence(KEYS[3])
  if is_late(fence, number, attempt_number) then return {0} end
  local lock = read_lock(KEYS[1])
  local created, longest, marker = read_marker(now)
  local is_own = lock and lock.node == node

  -- A DEL as first write passes when memory is full, and then so does the rest.
  local released, was_held = '', 0
  if releases > 0 then
    if is_own and names_ticket(lock.ticket, FIRST_TICKET, releases) then
      released, was_held = lock.ticket, lock.token ~= '0' and 1 or 0
      call('DEL', KEYS[1])
      lock, is_own = nil, false
    else
      call('DEL', KEYS[3])
    end
  end

  longest = math.max(longest, lease)
  local value = text(created) .. ' ' .. text(longest)
  if value ~= marker then call('SET', KEYS[4], value) end

  local held = lock and lock.value or ''
  local function write(ticket, its_attempt, token, left)
    held = lock_value(node, ticket, text(its_attempt), token)
    call('SET', KEYS[1], held, 'PX', text(math.max(lease, left)))
  end
  if is_own and lock.token ~= '0' and names_ticket(lock.ticket, FIRST_TICKET + releases, others) then
    write(lock.ticket, attempt_number + 1, lock.token, call('PTTL', KEYS[1]))
  end
  -- An unconfirmed lock of an earlier attempt of this node is replaced.
  if candidate ~= '' and (not lock or (is_own and lock.token == '0')) then write(candidate, attempt_number, '0', 0) end
  write_fence(KEYS[3], text(number), text(attempt_number), lease, fence)

  local last = tonumber(call('GET', KEYS[2]) or '0') or 0
  local left = held ~= '' and call('PTTL', KEYS[1]) or 0
  return {1, math.floor((now - created) / 1000), longest, released, was_held, held, left, text(math.max(last + 1, now))}
end

return attempt(vote)
