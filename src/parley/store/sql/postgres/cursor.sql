-- A large result is read bit by bit, through a cursor of the server.

-- name: declare
DECLARE parley_{name} NO SCROLL CURSOR FOR {query};

-- name: fetch
FETCH {count} FROM parley_{name};

-- name: close
CLOSE parley_{name};
