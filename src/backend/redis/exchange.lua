-- Everything one node has to say about one name, in one step.
--
-- KEYS  1 permits: sorted set, ticket -> deadline    2 queue: sorted set, ticket -> arrival    3 meta: hash, see below
-- ARGV  1 node   2 number of this call, 0 = nobody's word   3 limit   4 lease, ms   5 channel of a node, without the node
--       6 what a push calls this queue   7-10 how many tickets leave, keep, enter, try   11... these tickets: numbers of
--       this node, or whole tickets when it is nobody's word
-- reply {0}: a later call of this node came before, nothing was changed
--       {1, in use, waiting, look again in ms or -1, last token, pushes refused, left, kept, entered, tried,
--        ticket, token, ...}: the last pairs are this node's own waiting tickets that were granted. A letter per ticket:
--       left 1 a permit, 2 a place, 0 nothing; the others h held, w waiting, r refused, g gone
--
-- An error in the middle leaves a valid state: a permit is added before it leaves the queue, meta is written last. The
-- first write is a ZREM, which passes when memory is full; after it, so does the rest.
local call = redis.call
local PERMITS, QUEUE, META = KEYS[1], KEYS[2], KEYS[3]
local STATE, NODE = '<dddddddddddddd', '<ddddd'
local MOST_GRANTS, MOST_LOOKS, MOST_ORPHANS = 256, 1024, 2000
local HOUR = 3600000

local node, number, limit, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local leaves, keeps, enters, tries = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
if not (number and limit and lease and leaves and keeps and enters and tries)
  or #ARGV ~= 10 + leaves + keeps + enters + tries then
  return redis.error_reply('ERR malformed call')
end
local wanted = enters + tries
local mine = number > 0 and node .. '-' or ''

-- Read. Whatever stands under our keys and is not ours shows before anything is written.
local time = call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)
local read = call('HMGET', META, 'state', node)
-- clock: the lease clock. last: TIME when it was read. grace, due, gap: see "purge". sweep: the clock at the next one.
-- expires: TIME at which the first of our keys goes. mute: 1 when a push was refused.
local clock, last, grace, due, gap, span, token, arrival, waiting, shortest, longest, expires, sweep, mute
local known = read[1]
if known then
  if #known ~= struct.size(STATE) or (read[2] and #read[2] ~= struct.size(NODE)) then
    return redis.error_reply('INCOMPATIBLE meta was written by another version')
  end
  clock, last, grace, due, gap, span, token, arrival, waiting, shortest, longest, expires, sweep, mute =
    struct.unpack(STATE, known)
else
  clock, last, grace, due, gap, span, token, arrival = now, now, 0, 0, 0, 0, 0, 0
  shortest, longest, expires, sweep, mute = lease, lease, 0, now + lease, 0
end
local my_waiting = 0
if read[2] then
  local latest, _, _, _, count = struct.unpack(NODE, read[2])
  if number < latest then return {0} end
  my_waiting = count
end
local in_use = call('ZCARD', PERMITS)

-- The lease clock follows TIME and never goes back. A gap: so much time at once that holders may have been unable to
-- speak (a stall, a step of the server's clock), or nobody called.
local passed = math.max(0, now - last)
clock, last = clock + passed, now
local gapped = not known or passed > shortest / 2

-- The common case on a path of its own, without closures and tables, which would cost more than the commands: nobody
-- waits, there is room, at most one ticket leaves and one enters, and nothing has to be tidied up.
if waiting == 0 and grace == 0 and not gapped and clock < sweep and number > 0 and keeps == 0 and leaves < 2
  and wanted < 2 and (wanted == 0 or in_use < limit) then
  local left, held, fresh = '', '', false
  if leaves == 0 then
    call('ZREM', PERMITS, '')
  elseif call('ZREM', PERMITS, mine .. ARGV[11]) == 1 then
    in_use, left = in_use - 1, '1'
  else
    left = '0'
  end
  if wanted == 1 then
    held, fresh = 'h', in_use == 0
    if call('ZADD', PERMITS, 'GT', clock + lease, mine .. ARGV[11 + leaves]) == 1 then
      in_use, token = in_use + 1, math.max(token + 1, micros)
    end
  end
  shortest, longest = math.min(shortest, lease), math.max(longest, lease)
  local grow = in_use > 0 and expires < now + HOUR + longest
  if in_use == 0 then expires = now + longest elseif grow then expires = now + HOUR + 2 * longest end
  call('HSET', META, 'state',
    struct.pack(STATE, clock, last, 0, due, gap, span, token, arrival, 0, shortest, longest, expires, sweep, mute),
    node, struct.pack(NODE, number, limit, lease, clock, 0))
  if in_use == 0 or grow then call('PEXPIRE', META, expires - now) end
  if grow or fresh then call('PEXPIRE', PERMITS, expires - now) end
  return {1, in_use, 0, -1, token, mute, left, '', enters == 1 and held or '', tries == 1 and held or ''}
end

if not known or waiting > 0 or in_use - leaves + wanted > limit then waiting = call('ZCARD', QUEUE) end
if waiting == 0 then my_waiting = 0 end

local nodes = {} -- what meta says of other nodes: {number, limit, lease, last word, waiting}, false if nothing
local function about(other)
  local entry = nodes[other]
  if entry == nil then
    local packed = call('HMGET', META, other)[1]
    entry = packed and #packed == struct.size(NODE) and {struct.unpack(NODE, packed)} or false
    nodes[other] = entry
  end
  return entry
end
local function node_of(ticket) return string.match(ticket, '^(.*)%-%d+$') or ticket end
local function one_less_waits(other)
  waiting = waiting - 1
  if other == node then
    my_waiting = math.max(0, my_waiting - 1)
    return
  end
  local entry = about(other)
  if entry then entry[5], entry.dirty = math.max(0, entry[5] - 1), true end
end

-- Leave. A ticket may both hold and wait after an error in the middle.
local left = ''
if leaves == 0 then call('ZREM', PERMITS, '') end
for i = 11, 10 + leaves do
  local ticket, was = mine .. ARGV[i], '0'
  if call('ZREM', PERMITS, ticket) == 1 then
    in_use, was = in_use - 1, '1'
  end
  if waiting > 0 and call('ZREM', QUEUE, ticket) == 1 then
    one_less_waits(number > 0 and node or node_of(ticket))
    if was == '0' then was = '2' end
  end
  left = left .. was
end

-- Keep: permits only, a place in the queue is none.
local at, kept = 10 + leaves, {}
if keeps > 0 then
  local ask, add = {}, {}
  for i = 1, keeps do ask[i] = mine .. ARGV[at + i] end
  local scores = call('ZMSCORE', PERMITS, unpack(ask))
  for i = 1, keeps do
    kept[i] = scores[i] and 'h' or 'g'
    if scores[i] then
      add[#add + 1] = clock + lease
      add[#add + 1] = ask[i]
    end
  end
  if #add > 0 then call('ZADD', PERMITS, 'XX', 'GT', unpack(add)) end
end
at = at + keeps

-- Purge. After a gap nothing goes for a while (until `grace`), so that whoever lives can say so; then goes what was due at
-- the gap (`due`) and was not renewed. That while is half the longest lease, or the gap if that is shorter: a gap
-- endangers only leases up to twice its length, and each renews well within half of itself. A gap meanwhile (the last at
-- `gap`, the longest `span`) does not prolong it: it gets its own later.
local function purge(deadline)
  in_use = in_use - call('ZREMRANGEBYSCORE', PERMITS, '-inf', deadline)
end
if in_use == 0 and waiting == 0 then
  grace, span = 0, 0
else
  while grace > 0 and clock >= grace do
    purge(due)
    if gap > due then due, grace, span = gap, gap + span, 0 else grace = 0 end
  end
  if gapped then
    local pause = known and math.min(passed, longest / 2) or longest / 2
    gap = clock
    if grace == 0 then due, grace, span = clock, clock + pause, 0 else span = math.max(span, pause) end
  end
end
if grace == 0 and (waiting > 0 or clock >= sweep or (wanted > 0 and in_use + wanted > limit)) then purge(clock) end
if number > 0 then
  shortest, longest = math.min(shortest, lease), math.max(longest, lease)
end

-- Sweep, once a longest lease: forget nodes that have been silent for their lease, and the places they left behind.
if clock >= sweep and grace == 0 then
  local all, alive, orphans = call('HGETALL', META), {[node] = number > 0}, false
  local least, most
  if number > 0 then least, most = lease, lease end
  for i = 1, #all, 2 do
    local other, packed = all[i], all[i + 1]
    if other ~= 'state' and other ~= node then
      local _, _, its_lease, word, count = 0, 0, 0, 0, 0
      if #packed == struct.size(NODE) then _, _, its_lease, word, count = struct.unpack(NODE, packed) end
      if word + its_lease < clock then
        call('HDEL', META, other)
        nodes[other] = false
        orphans = orphans or count > 0
      else
        alive[other] = true
        least, most = math.min(least or its_lease, its_lease), math.max(most or its_lease, its_lease)
      end
    end
  end
  if orphans and waiting > 0 then
    for _, ticket in ipairs(call('ZRANGE', QUEUE, 0, MOST_ORPHANS - 1)) do
      if not alive[node_of(ticket)] then waiting = waiting - call('ZREM', QUEUE, ticket) end
    end
  end
  shortest, longest = least or shortest, most or longest
  sweep = clock + longest
end

-- Grant from the head of the queue.
local fresh_permits, fresh_queue = false, false -- made by this call: without an expiry yet
local granted, tokens, pushes = {}, {}, {}      -- own tickets, all tokens by ticket, node -> what to push
local budget, looks, more = MOST_GRANTS, MOST_LOOKS, false
local function grant()
  local rank, chunk, blocked = 0, 1, false -- those before `rank` are skipped: their node may yet speak
  while not blocked and waiting > rank do
    if budget == 0 or looks == 0 then
      more = true
      return
    end
    local heads = call('ZRANGE', QUEUE, rank, rank + math.min(chunk, budget, looks) - 1)
    if #heads == 0 then return end
    for _, ticket in ipairs(heads) do
      looks = looks - 1
      local owner = node_of(ticket)
      local its_limit, its_deadline
      if owner == node and number > 0 then
        its_limit, its_deadline = limit, clock + lease
      else
        local entry = about(owner)
        if entry then its_limit, its_deadline = entry[2], entry[3] + entry[4] end
      end
      if not its_limit or its_deadline <= clock then
        if grace > 0 then
          rank = rank + 1
        else
          call('ZREM', QUEUE, ticket)
          one_less_waits(owner)
        end
      elseif in_use >= its_limit then
        blocked = true
        break
      else
        fresh_permits = fresh_permits or in_use == 0
        in_use = in_use + call('ZADD', PERMITS, 'GT', its_deadline, ticket)
        token = math.max(token + 1, micros)
        call('ZREM', QUEUE, ticket)
        one_less_waits(owner)
        budget = budget - 1
        tokens[ticket] = token
        if owner == node then
          granted[#granted + 1] = ticket
        else
          pushes[owner] = (pushes[owner] or ARGV[6])
            .. string.format(' %s %.0f', string.sub(ticket, #owner + 2), token)
        end
      end
    end
    chunk = math.min(chunk * 4, 64)
  end
end
if waiting > 0 then grant() end

-- Enter and try.
local entered, tried = '', ''
if wanted > 0 then
  local deadline = clock + lease
  if waiting == 0 and in_use + wanted <= limit then
    -- Nobody waits and there is room for all: whether they are new or renewed makes no difference to the answer.
    local added
    if wanted == 1 then
      added = call('ZADD', PERMITS, 'GT', deadline, mine .. ARGV[at + 1])
    else
      local add = {}
      for i = 1, wanted do
        add[2 * i - 1], add[2 * i] = deadline, mine .. ARGV[at + i]
      end
      added = call('ZADD', PERMITS, 'GT', unpack(add))
    end
    fresh_permits = fresh_permits or in_use == 0
    in_use = in_use + added
    if added > 0 then token = math.max(token + 1, micros) + added - 1 end
    entered, tried = string.rep('h', enters), string.rep('h', tries)
  else
    local ask, states, add, queue, places = {}, {}, {}, {}, 0
    for i = 1, wanted do ask[i] = mine .. ARGV[at + i] end
    local held = call('ZMSCORE', PERMITS, unpack(ask))
    local placed = waiting > 0 and call('ZMSCORE', QUEUE, unpack(ask)) or {}
    for i = 1, wanted do
      if held[i] or (waiting == 0 and in_use < limit) then
        states[i] = 'h'
        add[#add + 1], add[#add + 2] = deadline, ask[i]
        if not held[i] then
          fresh_permits = fresh_permits or in_use == 0
          in_use, token = in_use + 1, math.max(token + 1, micros)
        end
      elseif placed[i] then
        states[i], places = 'w', places + 1
      elseif i > enters then
        states[i] = 'r'
      else
        states[i] = 'w'
        fresh_queue = fresh_queue or waiting == 0
        arrival, waiting, my_waiting = arrival + 1, waiting + 1, my_waiting + 1
        queue[#queue + 1], queue[#queue + 2] = arrival, ask[i]
      end
    end
    my_waiting = math.max(my_waiting, places + #queue / 2)
    if #add > 0 then call('ZADD', PERMITS, 'GT', unpack(add)) end
    if #queue > 0 then
      call('ZADD', QUEUE, 'NX', unpack(queue))
      -- Those before us may all be skipped for now.
      if grace > 0 and in_use < limit then
        local before = #granted
        grant()
        local new = {}
        for i = 1, wanted do new[ask[i]] = not placed[i] end
        for i = 1, wanted do
          if states[i] == 'w' and tokens[ask[i]] then states[i] = 'h' end
        end
        for i = #granted, before + 1, -1 do
          if new[granted[i]] then table.remove(granted, i) end
        end
      end
    end
    entered = table.concat(states, '', 1, enters)
    tried = table.concat(states, '', enters + 1, wanted)
  end
end

-- Nobody's word about a name nobody knows leaves no trace.
if number > 0 or known then
  -- Key expiry: an hour past the longest lease while anything is held or waits, never less then; else one lease.
  local idle = in_use == 0 and waiting == 0
  local grow = false
  if idle then
    grace, span, expires = 0, 0, now + longest
  elseif expires < now + HOUR + longest then
    grow, expires = true, now + HOUR + 2 * longest
  end

  local function state()
    return struct.pack(STATE, clock, last, grace, due, gap, span, token, arrival, waiting, shortest, longest, expires, sweep,
      mute)
  end
  for other, entry in pairs(nodes) do
    if entry and entry.dirty then
      call('HSET', META, other, struct.pack(NODE, entry[1], entry[2], entry[3], entry[4], entry[5]))
    end
  end
  if number > 0 then
    call('HSET', META, 'state', state(), node, struct.pack(NODE, number, limit, lease, clock, my_waiting))
  else
    call('HSET', META, 'state', state())
  end

  if next(pushes) then
    local was = mute
    for other, what in pairs(pushes) do
      local answer = redis.pcall('PUBLISH', ARGV[5] .. other, what)
      mute = type(answer) == 'table' and answer.err and 1 or 0
    end
    if mute ~= was then call('HSET', META, 'state', state()) end
  end

  if idle or grow then call('PEXPIRE', META, expires - now) end
  if in_use > 0 and (grow or fresh_permits) then call('PEXPIRE', PERMITS, expires - now) end
  if waiting > 0 and (grow or fresh_queue) then call('PEXPIRE', QUEUE, expires - now) end
end

local look_again = -1
if more then
  look_again = 1
elseif my_waiting > 0 and number > 0 then
  look_again = 0.45 * shortest
  if grace > 0 then look_again = math.min(look_again, grace - clock + 1) end
  local first = call('ZRANGE', PERMITS, 0, 0, 'WITHSCORES')[2]
  if first and (tonumber(first) > clock or grace == 0) then
    look_again = math.min(look_again, tonumber(first) - clock + 1)
  end
  if mute == 1 then look_again = math.min(look_again, 100) end
  look_again = math.max(1, math.floor(look_again))
end

local reply = {1, in_use, waiting, look_again, token, mute, left, table.concat(kept), entered, tried}
for _, ticket in ipairs(granted) do
  reply[#reply + 1] = string.sub(ticket, #node + 2)
  reply[#reply + 1] = tokens[ticket]
end
return reply
