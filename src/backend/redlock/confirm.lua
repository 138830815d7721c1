-- Writes the token into a lock that was taken, and remembers it. With `create` a lock that this server has lost is
-- made again: only for a ticket that holds by a majority.
--
-- KEYS: lock, token, fence of this node
-- ARGV: node, number, attempt, lease in ms, ticket, token, create (0 or 1)
local call = redis.call
local node, number, attempt, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local n, a = string.match(call('GET', KEYS[3]) or '', '^(%d+) (%d+)$')
n, a = tonumber(n), tonumber(a)
if n and (number < n or (number == n and attempt < a)) then
    return 0
end
local lock = call('GET', KEYS[1])
local holder, ticket, made_by = string.match(lock or '', '^(%S+) (%d+) (%d+) %d+$')
if holder == node and ticket == ARGV[5] then
    call('SET', KEYS[1], node .. ' ' .. ticket .. ' ' .. made_by .. ' ' .. ARGV[6], 'KEEPTTL')
elseif not lock and ARGV[7] == '1' then
    call('SET', KEYS[1], node .. ' ' .. ARGV[5] .. ' ' .. ARGV[3] .. ' ' .. ARGV[6], 'PX', ARGV[4])
else
    return 0
end
-- A token that is ahead of this server's clock is remembered until the clock has passed it: whatever the next one is,
-- it is higher.
local time = call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = math.max(tonumber(call('GET', KEYS[2]) or '0') or 0, tonumber(ARGV[6]))
local ahead = math.max(0, math.ceil((last - now) / 1000))
call('SET', KEYS[2], string.format('%.0f', last), 'PX', string.format('%.0f', lease + ahead))
return 1
