-- Executes a call about one name in the general form. `single`: the record at SINGLE, which is converted first. Returns nil if
-- the name has no keys at all and the call fits the single-holder form: then nothing was written. All reads come first, so
-- that a key that is not ours causes an error before anything is written.
local function exchange_general(PERMITS, QUEUE, META, SINGLE, single, tickets, number, limit, leaves, keeps, enters, tries)
  local call, pack, unpack_numbers = redis.call, struct.pack, struct.unpack -- `unpack` is Lua's own
  local STATE, GAPS, NODE, ANSWER = '<dddddddBB', '<dddd', '<ddddd', '<c1dddddHc0'
  local STATE_BYTES, GAPS_BYTES, NODE_BYTES = 58, 32, 40
  local MOST_GRANTS, MOST_LOOKS, MOST_ORPHANS = 256, 1024, 2000
  local HOUR = 3600000

  local at, wanted = 0, enters + tries
  local mine = number > 0 and node .. '-' or ''

  -- Convert the single-holder form.
  if single then
    call('HMGET', META, 'state')
    call('ZCARD', QUEUE)
    local latest, its_limit, its_lease, clock, last, token, holder, deadline = unpack_numbers('<dddddddd', single, 5)
    local its_node, expires = string.sub(single, 69), HOUR + 2 * its_lease
    call('ZREM', PERMITS, '')
    if holder >= 0 then
      call('ZADD', PERMITS, 'GT', deadline, its_node .. string.format('-%.0f', holder))
      call('PEXPIRE', PERMITS, expires)
    end
    call('HSET', META, 'state',
      pack(STATE, clock, last, token, its_lease, its_lease, now + expires, clock + its_lease, 0, 0),
      its_node, pack(NODE, latest, its_limit, its_lease, clock, 0))
    call('PEXPIRE', META, expires)
    call('DEL', SINGLE)
  end

  local read = call('HMGET', META, 'state', node)
  local known, mine_known = read[1], read[2]
  if (known and #known ~= STATE_BYTES) or (mine_known and #mine_known ~= NODE_BYTES) then
    return redis.error_reply('INCOMPATIBLE meta was written by another version')
  end
  -- clock: the lease clock. last: TIME when it was read. sweep: the clock at the next one. expires: TIME at which the first of
  -- our keys goes. mute: 1 when a push was refused. busy: 0 while no ticket is queued and no gap counts, 2 when one does.
  local clock, last, token, shortest, longest, expires, sweep, mute, busy = now, now, floor, lease, lease, 0, now + lease, 0, 0
  if known then clock, last, token, shortest, longest, expires, sweep, mute, busy = unpack_numbers(STATE, known) end
  local my_waiting = 0
  if mine_known then
    local latest, _, _, _, count = unpack_numbers(NODE, mine_known)
    if number < latest then return 's' end
    my_waiting = count
  end
  local in_use, waiting = call('ZCARD', PERMITS), 0
  if busy > 0 or not known or in_use - leaves + wanted > limit then waiting = call('ZCARD', QUEUE) end
  -- The keys of an idle name do not last, whatever the state says.
  if in_use == 0 and waiting == 0 then expires = 0 end

  -- The lease clock follows TIME and never goes back. A gap: so much time at once that holders may have been unable to
  -- speak (a stall, a step of the server's clock), or no calls were made.
  local passed = now > last and now - last or 0
  clock, last = clock + passed, now
  local gapped = not known or passed > shortest / 2

  if SINGLE and not known and in_use == 0 and waiting == 0 and number > 0 and keeps == 0 and wanted < 2 then return end

  -- Release, while no ticket is queued.
  local left = ''
  local alone = busy == 0 and waiting == 0
  if alone then
    for i = 1, leaves do
      local was = call('ZREM', PERMITS, mine .. tickets[at + i])
      in_use, left = in_use - was, left .. (was == 1 and '1' or '0')
    end
  end

  -- The common case on a path of its own, without closures and tables, which would cost more than the commands: no
  -- ticket is queued, there is room, at most one ticket is acquired, and nothing has to be tidied up.
  if alone and number > 0 and keeps == 0 and wanted < 2 and (wanted == 0 or in_use < limit)
    and clock < sweep and (in_use == 0 or not gapped) then
    local same = shortest == lease and longest == lease
    if not same then shortest, longest = math.min(shortest, lease), math.max(longest, lease) end
    local word = pack(NODE, number, limit, lease, clock, 0)
    if wanted == 0 then
      -- No more than a word of this node: a state that knows its lease stands as it is.
      if leaves == 0 then call('ZREM', PERMITS, '') end
      if known and same then
        call('HSET', META, node, word)
      else
        local state = pack(STATE, clock, last, token, shortest, longest, expires, sweep, mute, 0)
        call('HSET', META, 'state', state, node, word)
      end
      if in_use == 0 then call('PEXPIRE', META, same and lease_text or longest) end
      return pack(ANSWER, 'g', in_use, 0, -1, token, mute, 0, left)
    end
    local grow, hour, fresh = expires < now + HOUR + longest, same and hour_text or HOUR + 2 * longest, in_use == 0
    if known and grow then call('PEXPIRE', META, hour) elseif leaves == 0 then call('ZREM', PERMITS, '') end
    if call('ZADD', PERMITS, 'GT', clock + lease, mine .. tickets[at + 1 + leaves]) == 1 then
      in_use, token = in_use + 1, math.max(token + 1, micros)
    end
    if grow or fresh then call('PEXPIRE', PERMITS, hour) end
    if grow then expires = now + HOUR + 2 * longest end
    call('HSET', META, 'state', pack(STATE, clock, last, token, shortest, longest, expires, sweep, mute, 0), node, word)
    if not known then call('PEXPIRE', META, hour) end
    return pack(ANSWER, 'g', in_use, 0, -1, token, mute, 0, left .. 'h')
  end

  local grace, due, gap, span = 0, 0, 0, 0 -- see "purge"
  if busy == 2 then
    local gaps = call('HMGET', META, 'gaps')[1]
    if gaps and #gaps == GAPS_BYTES then grace, due, gap, span = unpack_numbers(GAPS, gaps) end
  end
  if waiting == 0 then my_waiting = 0 end

  local nodes = {} -- what meta says of other nodes: {number, limit, lease, last word, waiting}, false if nothing
  local function about(other)
    local entry = nodes[other]
    if entry == nil then
      local packed = call('HMGET', META, other)[1]
      entry = packed and #packed == NODE_BYTES and {unpack_numbers(NODE, packed)} or false
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

  -- Release, while others are queued. A ticket may both hold and wait after an error in the middle.
  if leaves == 0 then call('ZREM', PERMITS, '') end
  if not alone then
    for i = 1, leaves do
      local ticket = mine .. tickets[at + i]
      local was = '0'
      if call('ZREM', PERMITS, ticket) == 1 then
        in_use, was = in_use - 1, '1'
      end
      if waiting > 0 and call('ZREM', QUEUE, ticket) == 1 then
        one_less_waits(number > 0 and node or node_of(ticket))
        if was == '0' then was = '2' end
      end
      left = left .. was
    end
  end

  -- Renew: permits only, not queue entries.
  at = at + leaves
  local kept = {}
  local deadline = string.format('%.0f', clock + lease) -- once, and not for each ticket
  if keeps > 0 then
    local ask, add = {}, {}
    for i = 1, keeps do ask[i] = mine .. tickets[at + i] end
    local scores = call('ZMSCORE', PERMITS, unpack(ask))
    for i = 1, keeps do
      local held = scores[i]
      kept[i] = held and 'h' or 'g'
      if held then add[#add + 1], add[#add + 2] = deadline, ask[i] end
    end
    if #add > 0 then call('ZADD', PERMITS, 'XX', 'GT', unpack(add)) end
  end
  at = at + keeps

  -- Purge. After a gap nothing goes for a while (until `grace`), so that live nodes can renew; then goes what was due at
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
      if other ~= 'state' and other ~= 'gaps' and other ~= node then
        local _, _, its_lease, word, count = 0, 0, 0, 0, 0
        if #packed == NODE_BYTES then _, _, its_lease, word, count = unpack_numbers(NODE, packed) end
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
            pushes[owner] = (pushes[owner] or '') .. string.format(' %s %.0f', string.sub(ticket, #owner + 2), token)
          end
        end
      end
      chunk = math.min(chunk * 4, 64)
    end
  end
  if waiting > 0 then grant() end

  -- Acquire and try.
  local entered, tried = '', ''
  if wanted > 0 then
    if waiting == 0 and in_use + wanted <= limit then
      -- No ticket is queued and there is room for all: new or renewed makes no difference to the answer.
      local added
      if wanted == 1 then
        added = call('ZADD', PERMITS, 'GT', deadline, mine .. tickets[at + 1])
      else
        local add = {}
        for i = 1, wanted do
          add[2 * i - 1], add[2 * i] = deadline, mine .. tickets[at + i]
        end
        added = call('ZADD', PERMITS, 'GT', unpack(add))
      end
      fresh_permits = fresh_permits or in_use == 0
      in_use = in_use + added
      if added > 0 then token = math.max(token + 1, micros) + added - 1 end
      entered, tried = string.rep('h', enters), string.rep('h', tries)
    else
      local ask, states, add, queue, places, arrival = {}, {}, {}, {}, 0, nil -- arrival: of the last in the queue
      for i = 1, wanted do ask[i] = mine .. tickets[at + i] end
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
          if not arrival then
            fresh_queue = waiting == 0
            arrival = fresh_queue and 0 or tonumber(call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2] or 0)
          end
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

  -- Administrative calls do not create state.
  if number > 0 or known then
    -- Key expiry: an hour past the longest lease while anything is held or waits, never less then; else one lease.
    local idle = in_use == 0 and waiting == 0
    local grow = false
    if idle then
      grace, expires = 0, now + longest
    elseif expires < now + HOUR + longest then
      grow, expires = true, now + HOUR + 2 * longest
    end

    for other, entry in pairs(nodes) do
      if entry and entry.dirty then
        call('HSET', META, other, pack(NODE, entry[1], entry[2], entry[3], entry[4], entry[5]))
      end
    end
    local function write_meta()
      if grace > 0 then
        call('HSET', META, 'gaps', pack(GAPS, grace, due, gap, span))
      elseif busy == 2 then
        call('HDEL', META, 'gaps')
      end
      busy = grace > 0 and 2 or waiting > 0 and 1 or 0
      local state = pack(STATE, clock, last, token, shortest, longest, expires, sweep, mute, busy)
      if number > 0 then
        call('HSET', META, 'state', state, node, pack(NODE, number, limit, lease, clock, my_waiting))
      else
        call('HSET', META, 'state', state)
      end
    end
    write_meta()

    if next(pushes) then
      -- Their channels, and the name of this queue in them, from its key: prefix:kind:{name}.
      local prefix, kind, name = string.match(PERMITS, '^(.*):(%a+):{(.*)}$')
      local was = mute
      for other, what in pairs(pushes) do
        local answer = redis.pcall('PUBLISH', prefix .. ':inbox:' .. other, kind .. ':' .. name .. what)
        mute = type(answer) == 'table' and answer.err and 1 or 0
      end
      if mute ~= was then write_meta() end
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

  local grants = ''
  for _, ticket in ipairs(granted) do
    grants = grants .. pack('<dd', tonumber(string.sub(ticket, #node + 2)), tokens[ticket])
  end
  local letters = left .. table.concat(kept) .. entered .. tried
  return pack(ANSWER, 'g', in_use, waiting, look_again, token, mute, #granted, letters) .. grants
end

-- The same, with an error as an answer.
local function try_general(...)
  local done, answer = pcall(exchange_general, ...)
  if not done and type(answer) ~= 'table' then return redis.error_reply(answer) end
  return answer
end

