local SINGLE, SINGLE_BYTES = '<c4ddddddddc0', 68 -- bytes without the node

-- Executes a call about a name in the single-holder form, or of a name without keys whose call fits this form. `single`: its
-- record, if there is one. Returns nothing if the call needs the general form: then nothing was written.
--
-- As long as no other node has called, and the call concerns the only permit or there is none, one write does it all. A second
-- permit needs the general form.
local function exchange_single(key, single, tickets, number, limit, leaves, keeps, enters, tries)
  local named = keeps + enters + tries -- besides those to release
  local clock, last, token, holder = now, now, floor, -1
  if single then
    if type(single) == 'table' then return single end -- an error
    if #single < SINGLE_BYTES or string.sub(single, 1, 4) ~= 'lone' then
      return redis.error_reply('INCOMPATIBLE lone was written by another version')
    end
    local latest, its_lease, _
    latest, _, its_lease, clock, last, token, holder = struct.unpack('<ddddddd', single, 5)
    if string.sub(single, SINGLE_BYTES + 1) ~= node then return end
    if number < latest then return 's' end
    if lease ~= its_lease then return end
  end
  if named > 1 then return end

  local letters, ticket = '', named == 1 and tonumber(tickets[leaves + 1])
  for i = 1, leaves do
    local was_held = tonumber(tickets[i]) == holder
    if was_held then holder = -1 end
    letters = letters .. (was_held and '1' or '0')
  end
  if keeps == 0 and ticket and holder < 0 then holder, token = ticket, math.max(token + 1, micros) end
  if ticket then letters = letters .. (ticket == holder and 'h' or 'g') end
  if holder >= 0 and ticket ~= holder then return end
  if now > last then clock = clock + now - last end
  local record = struct.pack(SINGLE, 'lone', number, limit, lease, clock, now, token, holder, clock + lease, node)
  local expires = holder < 0 and lease_text or hour_text
  for last_try = 0, 1 do
    local done
    if single then
      done = redis.pcall('SET', key, record, 'PX', expires)
    else
      -- A key of another type reads as if it were absent, and is not overwritten.
      done = redis.pcall('SET', key, record, 'PX', expires, 'NX')
    end
    if not done then return redis.pcall('GET', key) end
    if not done.err then break end
    if last_try == 1 then return done end
    -- When memory is full it passes after a write that always does.
    redis.pcall('PEXPIRE', key, expires)
  end
  if holder < 0 then return 'f' .. letters end
  return struct.pack('<c1dc0', 'o', token, letters)
end

