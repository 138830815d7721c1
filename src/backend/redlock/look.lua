-- Who holds the lock here, and for how long. With a ticket: takes it out if it is that one.
--
-- KEYS: lock
-- ARGV: `node-ticket`, or nothing
local lock = redis.call('GET', KEYS[1])
if not lock then
    return { '', 0 }
end
local left = redis.call('PTTL', KEYS[1])
local holder, ticket = string.match(lock, '^(%S+) (%d+) %d+ %d+$')
if ARGV[1] and holder and ARGV[1] == holder .. '-' .. ticket then
    redis.call('DEL', KEYS[1])
elseif ARGV[1] then
    return { '', 0 }
end
return { lock, left }
