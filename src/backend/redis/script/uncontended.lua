-- The general form while no ticket is queued, there is room, and nothing has to be tidied up. A path of its own: most calls take it, and the
-- tables and closures of the others cost more than its commands.

-- Reads the name, and executes the call if it is such a one. Else returns nothing and the state, with what was read: nothing if a record has
-- an unknown format. All reads come before the first write, so that a key that is not ours causes an error before anything was changed.
local function exchange_uncontended(state, read)
  local call, pack, node = redis.call, struct.pack, ARGV[1]
  local key, tickets, number, limit = state.key, state.tickets, state.number, state.limit
  local PERMITS, QUEUE, META = KEYS[key - 2], KEYS[key - 1], KEYS[key]
  local releases, renews, wanted = state.releases, state.renews, state.acquires + state.tries
  local owner = number > 0 and node .. '-' or '' -- what a ticket starts with
  read = read or call('HMGET', META, STATE_FIELD, node)
  local HOUR = 3600000
  local known, own = read[1], read[2]
  local clock, read_at, token, shortest, longest, expires, sweep_at, mute, busy = now, now, token_floor, lease, lease, 0, now + lease, 0, 0
  local version, latest, own_queued, _ = FORMAT_VERSION, 0, 0, nil
  if known then
    version = nil
    if #known == STATE_BYTES then version, clock, read_at, token, shortest, longest, expires, sweep_at, mute, busy = struct.unpack(STATE, known) end
  end
  if own and version == FORMAT_VERSION then
    version = nil
    if #own == NODE_BYTES then version, latest, _, _, _, own_queued = struct.unpack(NODE, own) end
  end
  if version ~= FORMAT_VERSION then
    state.is_unknown = true
    return nil, state
  end
  if number < latest then return 's' end
  local in_use, queued = call('ZCARD', PERMITS), 0
  if busy > 0 or not known or in_use - releases + wanted > limit then queued = call('ZCARD', QUEUE) end
  -- The keys of an idle name may be gone, whatever the state says.
  if in_use == 0 and queued == 0 then expires = 0 end
  local passed = math.max(0, now - read_at)
  clock = clock + passed
  -- So much time at once that holders may have been unable to call: a stall, a step of the server's clock. Or nobody called.
  local gapped = not known or passed > shortest / 2

  if key > 3 and not known and in_use == 0 and queued == 0 and number > 0 and renews == 0 and wanted < 2 then
    return nil, state
  end

  local released
  if busy == 0 and queued == 0 then
    released = ''
    for i = 1, releases do
      local was = call('ZREM', PERMITS, owner .. tickets[i])
      in_use, released = in_use - was, released .. (was == 1 and '1' or '0')
    end
  end
  if not released or number == 0 or renews > 0 or (wanted > 0 and in_use + wanted > limit) or clock >= sweep_at
    or (in_use > 0 and gapped) then
    return nil, {
      number = number, limit = limit, releases = releases, renews = renews, acquires = state.acquires, tries = state.tries,
      tickets = tickets, key = key, permits = PERMITS, queue = QUEUE, meta = META, owner = owner, known = known, clock = clock, token = token,
      shortest = shortest, longest = longest, expires = expires, sweep_at = sweep_at, mute = mute, busy = busy, passed = passed,
      gapped = gapped, in_use = in_use, queued = queued, own_queued = own_queued, released = released, lease = lease, now = now,
      micros = micros, node = node, grace = 0, due = 0, gap = 0, span = 0, grants_left = 256, heads_left = 1024,
    }
  end

  local same = shortest == lease and longest == lease
  if not same then shortest, longest = math.min(shortest, lease), math.max(longest, lease) end
  local own_record = pack(NODE, FORMAT_VERSION, number, limit, lease, clock, 0)
  if wanted == 0 then
    -- A heartbeat: a state that knows its lease stays as it is.
    if releases == 0 then call('ZREM', PERMITS, '') end
    if known and same then
      call('HSET', META, node, own_record)
    else
      local record = pack(STATE, FORMAT_VERSION, clock, now, token, shortest, longest, expires, sweep_at, mute, 0)
      call('HSET', META, STATE_FIELD, record, node, own_record)
    end
    if in_use == 0 then call('PEXPIRE', META, same and ARGV[2] or longest) end
    return pack(GENERAL_ANSWER, 'g', in_use, 0, -1, token, mute, 0, released)
  end

  local grows, lifetime, is_first = expires < now + HOUR + longest, same and ARGV[3] or HOUR + 2 * longest, in_use == 0
  if known and grows then call('PEXPIRE', META, lifetime) elseif releases == 0 then call('ZREM', PERMITS, '') end
  local added
  if wanted == 1 then
    added = call('ZADD', PERMITS, 'GT', clock + lease, owner .. tickets[releases + 1])
  else
    local deadline, entries = string.format('%.0f', clock + lease), {}
    for i = 1, wanted do entries[2 * i - 1], entries[2 * i] = deadline, owner .. tickets[releases + i] end
    added = call('ZADD', PERMITS, 'GT', unpack(entries))
  end
  if added > 0 then in_use, token = in_use + added, math.max(token + 1, micros) + added - 1 end
  if grows or is_first then call('PEXPIRE', PERMITS, lifetime) end
  if grows then expires = now + HOUR + 2 * longest end
  local record = pack(STATE, FORMAT_VERSION, clock, now, token, shortest, longest, expires, sweep_at, mute, 0)
  call('HSET', META, STATE_FIELD, record, node, own_record)
  if not known then call('PEXPIRE', META, lifetime) end
  return pack(GENERAL_ANSWER, 'g', in_use, 0, -1, token, mute, 0, released .. string.rep('h', wanted))
end
