-- Reads and writes values.

local call = redis.call

local function text(number) return string.format('%.0f', number) end

local function refuse(key, value)
  local found = string.sub(string.gsub(value, '%c', '?'), 1, 60)
  error({err = string.format("INCOMPATIBLE %s has the value '%s', but this client reads format version %s", key, found, FORMAT_VERSION)})
end

-- Returns nothing if there is no lock.
local function read_lock(key)
  local value = call('GET', key)
  if not value then return end
  local node, ticket, attempt, token = string.match(value, LOCK)
  if not node then refuse(key, value) end
  return {node = node, ticket = ticket, attempt = attempt, token = token, value = value}
end

local function lock_value(node, ticket, attempt, token)
  return table.concat({FORMAT_VERSION, node, ticket, attempt, token}, ' ')
end

-- Returns nothing if there is none.
local function read_fence(key)
  local value = call('GET', key)
  if not value then return end
  local number, attempt = string.match(value, FENCE)
  if not number then refuse(key, value) end
  return {number = tonumber(number), attempt = tonumber(attempt), left = call('PTTL', key)}
end

local function write_fence(key, number, attempt, lease, fence)
  local left = fence and fence.left or 0
  call('SET', key, FORMAT_VERSION .. ' ' .. number .. ' ' .. attempt, 'PX', text(math.max(lease, left)))
end

-- A later call of the node was executed before.
local function is_late(fence, number, attempt)
  return fence and (number < fence.number or (number == fence.number and attempt < fence.attempt))
end

local function micros()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Executes a function. An error that it raises is its result.
local function attempt(execute)
  local done, answer = pcall(execute)
  if done or type(answer) == 'table' then return answer end
  return redis.error_reply(answer)
end
