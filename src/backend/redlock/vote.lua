-- Everything that a node has to say to one server about one name. Who holds the lock here is the answer: the node
-- counts the votes.
--
-- KEYS: lock, token, fence of this node, marker of this server
-- ARGV: node, number, attempt, lease in ms, candidate or '', how many leave, stay (keep, then want), and those tickets
--
-- lock: `node ticket attempt token`; a token of 0 is not confirmed, no permit yet. An attempt is even; once the lock was
-- renewed it is odd, and no roll-back means it any more.
-- fence: `number attempt`, the newest word of this node. An older one changes nothing.
-- marker: `created longest`: since when this server has remembered (µs), and the longest lease it has heard of (ms).
local call = redis.call
local node, number, attempt, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local candidate, leaving, staying = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local time = call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function text(n)
    return string.format('%.0f', n)
end

local fence, fence_left = call('GET', KEYS[3]), 0
if fence then
    local n, a = string.match(fence, '^(%d+) (%d+)$')
    n, a = tonumber(n), tonumber(a)
    if n and (number < n or (number == n and attempt < a)) then
        return { 0 }
    end
    fence_left = call('PTTL', KEYS[3])
end

local lock = call('GET', KEYS[1])
local holder, ticket, _, token = string.match(lock or '', '^(%S+) (%d+) (%d+) (%d+)$')
local mine = holder == node

-- A DEL as first write passes also where memory is full, and then so does the rest.
local left, left_held = '', 0
if leaving > 0 then
    for i = 8, 7 + leaving do
        if mine and ARGV[i] == ticket then
            left, left_held = ticket, token ~= '0' and 1 or 0
        end
    end
    if left == '' then
        call('DEL', KEYS[3])
    else
        call('DEL', KEYS[1])
        lock, mine = false, false
    end
end

local marker = call('GET', KEYS[4])
local created, longest = string.match(marker or '', '^(%d+) (%d+)$')
created, longest = tonumber(created), tonumber(longest) or 0
if not created or created > now or longest < lease then
    if not created or created > now then
        created = now
    end
    longest = math.max(longest, lease)
    call('SET', KEYS[4], text(created) .. ' ' .. text(longest))
end

local function write(ticket, attempt, token, left)
    lock = node .. ' ' .. ticket .. ' ' .. text(attempt) .. ' ' .. token
    call('SET', KEYS[1], lock, 'PX', text(math.max(lease, left)))
end

if mine and token ~= '0' then
    for i = 8 + leaving, 7 + leaving + staying do
        if ARGV[i] == ticket then
            write(ticket, attempt + 1, token, call('PTTL', KEYS[1]))
            break
        end
    end
end
-- What an earlier attempt of this node has left is nobody's: this one is newer.
if candidate ~= '' and (not lock or (mine and token == '0')) then
    write(candidate, attempt, '0', 0)
end
call('SET', KEYS[3], text(number) .. ' ' .. text(attempt), 'PX', text(math.max(lease, fence_left)))

local last = tonumber(call('GET', KEYS[2]) or '0') or 0
return {
    1, math.floor((now - created) / 1000), longest, left, left_held,
    lock or '', lock and call('PTTL', KEYS[1]) or 0, text(math.max(last + 1, now)),
}
