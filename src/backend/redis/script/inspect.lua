-- Lists holders and queued tickets. Changes nothing: the lease clock is only computed, and what has expired by it is omitted.
--
-- KEYS  the keys of the general form, then the single-holder key unless in a cluster    ARGV  1 how many tickets of each to list
-- reply {in use, queued, {ticket, ms left, ...} oldest deadline first, the same of queued tickets in their order}

local call = redis.call
local permits, queue, meta, single_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local most = tonumber(ARGV[1])

local function inspect_single(record)
  local _, _, _, _, clock, read_at, _, holder, deadline, owner = read_single(record, single_key)
  local left = deadline - clock - math.max(0, now - read_at)
  if holder == FREE or left <= 0 then return {0, 0, {}, {}} end
  return {1, 0, {string.format('%s-%.0f', owner, holder), left}, {}}
end

local function inspect()
  local single = single_key and call('GET', single_key)
  if single then return inspect_single(single) end
  local clock, deadlines = read_meta(meta)
  local alive = '(' .. string.format('%.0f', clock)
  local holders = call('ZRANGE', permits, alive, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  for i = 2, #holders, 2 do holders[i] = tonumber(holders[i]) - clock end
  local queued, list = read_queue(queue, most, clock, deadlines)
  return {call('ZCOUNT', permits, alive, '+inf'), queued, holders, list}
end

return (attempt(inspect))
