-- Acquires or tries tickets for which there is room, or records a heartbeat.

local same = shortest == lease and longest == lease
if not same then shortest, longest = math.min(shortest, lease), math.max(longest, lease) end
local own_record = pack(NODE, FORMAT_VERSION, number, limit, lease, clock, 0)
if wanted == 0 then
  -- A heartbeat: a state that knows its lease stays as it is.
  if releases == 0 then call('ZREM', permits, '') end
  if known and same then
    call('HSET', meta, node, own_record)
  else
    local record = pack(STATE, FORMAT_VERSION, clock, now, token, shortest, longest, expires, sweep_at, mute, 0)
    call('HSET', meta, STATE_FIELD, record, node, own_record)
  end
  if in_use == 0 then call('PEXPIRE', meta, same and ARGV[2] or longest) end
  return pack(GENERAL_ANSWER, 'g', in_use, 0, -1, token, mute, 0, released)
end

local grows, lifetime, is_first = expires < now + HOUR + longest, same and ARGV[3] or HOUR + 2 * longest, in_use == 0
if known and grows then call('PEXPIRE', meta, lifetime) elseif releases == 0 then call('ZREM', permits, '') end
local added, letters
if wanted == 1 then
  letters = 'h'
  added = call('ZADD', permits, 'GT', clock + lease, owner .. tickets[releases + 1])
else
  local deadline, entries = string.format('%.0f', clock + lease), {}
  letters = string.rep('h', wanted)
  for i = 1, wanted do entries[2 * i - 1], entries[2 * i] = deadline, owner .. tickets[releases + i] end
  added = call('ZADD', permits, 'GT', unpack(entries))
end
if added > 0 then in_use, token = in_use + added, math.max(token + 1, micros) + added - 1 end
if grows or is_first then call('PEXPIRE', permits, lifetime) end
if grows then expires = now + HOUR + 2 * longest end
local record = pack(STATE, FORMAT_VERSION, clock, now, token, shortest, longest, expires, sweep_at, mute, 0)
call('HSET', meta, STATE_FIELD, record, node, own_record)
if not known then call('PEXPIRE', meta, lifetime) end
return pack(GENERAL_ANSWER, 'g', in_use, 0, -1, token, mute, 0, released .. letters)
