-- Keys: an id (empty for none) and the lane to release (empty for none). Arguments: the holder, how
-- long the id is remembered, in milliseconds.
if KEYS[1] ~= '' then
    redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
end
if KEYS[2] ~= '' and redis.call('GET', KEYS[2]) == ARGV[1] then
    redis.call('DEL', KEYS[2])
end
return 0
