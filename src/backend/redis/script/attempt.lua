-- Executes a function. An error that it raises is its result.
local function attempt(execute, ...)
  local done, answer, state = pcall(execute, ...)
  if done then return answer, state end
  return type(answer) == 'table' and answer or redis.error_reply(answer)
end
