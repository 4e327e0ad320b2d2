-- Keys: an id (empty for none) and its lane. Arguments: the holder, the lease in milliseconds.
-- Returns 0 for new, 1 for handled, 2 for busy.
if KEYS[1] ~= '' and redis.call('EXISTS', KEYS[1]) == 1 then
    return 1
end
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then
    return 2
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 0
