-- Who holds and who waits. Changes nothing: the lease clock is only reckoned, and what is due by it is left out.
--
-- KEYS  as in exchange.lua    ARGV  1 how many tickets of each to list
-- reply {in use, waiting, {ticket, ms left, ...} oldest deadline first, the same of those that wait, first in line first}
local call = redis.call
local PERMITS, QUEUE, META, LONE = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local STATE, NODE, STATE_BYTES, NODE_BYTES = '<dddddddBB', '<ddddd', 58, 40
local LONE_BYTES, LONE_MARK = 68, 'lone'
local MOST_LOOKS = 10000

local most = tonumber(ARGV[1])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local lone = LONE and call('GET', LONE)
if lone then
  if #lone < LONE_BYTES or string.sub(lone, 1, 4) ~= LONE_MARK then
    return redis.error_reply('INCOMPATIBLE lone was written by another version')
  end
  local _, _, _, clock, last, _, holder, deadline = struct.unpack('<dddddddd', lone, 5)
  local ms_left = deadline - clock - math.max(0, now - last)
  if holder < 0 or ms_left <= 0 then return {0, 0, {}, {}} end
  return {1, 0, {string.sub(lone, LONE_BYTES + 1) .. string.format('-%.0f', holder), ms_left}, {}}
end

local clock, ends = now, {}
local all = call('HGETALL', META)
for i = 1, #all, 2 do
  local field, packed = all[i], all[i + 1]
  if field == 'state' then
    if #packed ~= STATE_BYTES then
      return redis.error_reply('INCOMPATIBLE meta was written by another version')
    end
    local reckoned, last = struct.unpack(STATE, packed)
    clock = reckoned + math.max(0, now - last)
  elseif #packed == NODE_BYTES then
    local _, _, lease, word = struct.unpack(NODE, packed)
    ends[field] = word + lease
  end
end

local alive = '(' .. string.format('%.0f', clock)
local in_use = call('ZCOUNT', PERMITS, alive, '+inf')
local holders = call('ZRANGE', PERMITS, alive, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
for i = 2, #holders, 2 do holders[i] = tonumber(holders[i]) - clock end

local waiting, waiters, rank = call('ZCARD', QUEUE), {}, 0
local total = waiting
while rank < waiting and rank < MOST_LOOKS do
  local tickets = call('ZRANGE', QUEUE, rank, rank + 499)
  if #tickets == 0 then break end
  for _, ticket in ipairs(tickets) do
    local ending = ends[string.match(ticket, '^(.*)%-%d+$')]
    if not ending or ending <= clock then
      total = total - 1
    elseif #waiters < 2 * most then
      waiters[#waiters + 1], waiters[#waiters + 2] = ticket, ending - clock
    end
  end
  rank = rank + #tickets
end
return {in_use, total, holders, waiters}
