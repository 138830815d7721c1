-- Takes back what one attempt has made, and tickets that leave. Nothing that is older than this comes after it.
--
-- KEYS: lock, fence of this node
-- ARGV: node, number, attempt (or 0: of no attempt), the attempt to fence off, lease in ms, tickets that leave
local call = redis.call
local holder, ticket, made_by = string.match(call('GET', KEYS[1]) or '', '^(%S+) (%d+) (%d+) %d+$')
if holder == ARGV[1] then
    local goes = made_by == ARGV[3]
    for i = 6, #ARGV do
        goes = goes or ARGV[i] == ticket
    end
    if goes then
        call('DEL', KEYS[1])
    end
end
local number, attempt, left = tonumber(ARGV[2]), tonumber(ARGV[4]), 0
local fence = call('GET', KEYS[2])
if fence then
    local n, a = string.match(fence, '^(%d+) (%d+)$')
    n, a = tonumber(n), tonumber(a)
    if n and (number < n or (number == n and attempt <= a)) then
        return 1
    end
    left = call('PTTL', KEYS[2])
end
local lease = math.max(tonumber(ARGV[5]), left)
call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[4], 'PX', string.format('%.0f', lease))
return 1
