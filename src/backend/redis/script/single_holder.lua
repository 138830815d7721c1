-- The single-holder form: as long as one node alone has called, and has one permit at most, one record and one write are enough.

-- The record is `nil` if there is none. Returns nothing if the call needs the general form: then nothing was written.
local exchange_single = has_unread and function(state, record)
  local number, tickets, releases = state.number, state.tickets, state.releases
  local named = state.renews + state.acquires + state.tries
  local clock, read_at, token, holder = now, now, token_floor, FREE
  if record then
    local _, latest, its_lease
    _, latest, _, its_lease, clock, read_at, token, holder = read_single(record, KEYS[state.name])
    if sub(record, SINGLE_BYTES - 1) ~= own_end then return end
    if number < latest then return 's' end
    if lease ~= its_lease then return end
  end
  if named > 1 then return end

  local letters, ticket = '', named == 1 and tonumber(tickets[releases + 1])
  for i = 1, releases do
    local was_held = tonumber(tickets[i]) == holder
    if was_held then holder = FREE end
    letters = letters .. (was_held and '1' or '0')
  end
  if ticket and holder == FREE and state.renews == 0 then holder, token = ticket, math.max(token + 1, micros) end
  if ticket then letters = letters .. (ticket == holder and 'h' or 'g') end
  if holder ~= FREE and ticket ~= holder then return end
  clock = clock + math.max(0, now - read_at)

  local key, expires, done = KEYS[state.name], holder == FREE and lease_text or lifetime_text, nil
  local written = pack(SINGLE, FORMAT_VERSION, number, state.limit, lease, clock, now, token, holder, clock + lease, #node, node)
  for last_try = 0, 1 do
    if record then
      done = redis.pcall('SET', key, written, 'PX', expires)
    else
      -- A key of another type reads as if it were absent, and is not overwritten.
      done = redis.pcall('SET', key, written, 'PX', expires, 'NX')
    end
    if not done then return redis.pcall('GET', key) end
    if not done.err then break end
    if last_try == 1 then return done end
    -- With memory full, SET succeeds after a write that is always allowed.
    redis.pcall('PEXPIRE', key, expires)
  end
  if holder == FREE then return 'f' .. letters end
  return pack('<c1dc0', 'o', token, letters)
end
