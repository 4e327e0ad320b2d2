-- What shared statements have in braces. A transaction has the file's lock already.

-- piece: locked

-- piece: passing_over

-- piece: by_due
INDEXED BY sources_by_due

-- piece: ids
SELECT value FROM json_each(:ids)

-- piece: lock
1
