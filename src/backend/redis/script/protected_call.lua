-- Executes a function. An error that it raises is its result. (Three arguments, since `...` is slow.)
local function attempt(execute, state, record, name)
  local done, answer, left = pcall(execute, state, record, name)
  if done then return answer, left end
  return type(answer) == 'table' and answer or redis.error_reply(answer)
end
