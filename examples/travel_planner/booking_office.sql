-- name: schema
CREATE TABLE IF NOT EXISTS offers (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    title TEXT NOT NULL,
    price REAL NOT NULL,
    currency TEXT NOT NULL,
    stars INTEGER NOT NULL,
    starts TEXT NOT NULL,
    ends TEXT NOT NULL,
    UNIQUE (kind, title, price, currency, starts, ends)
);
CREATE TABLE IF NOT EXISTS bookings (
    id INTEGER PRIMARY KEY,
    reference TEXT NOT NULL UNIQUE,
    code TEXT NOT NULL DEFAULT '',
    offer INTEGER NOT NULL REFERENCES offers (id),
    title TEXT NOT NULL,
    is_cancelled INTEGER NOT NULL DEFAULT 0
);
-- What was really done, in order: a repeated request adds nothing.
CREATE TABLE IF NOT EXISTS journal (
    id INTEGER PRIMARY KEY,
    act TEXT NOT NULL,
    code TEXT NOT NULL,
    title TEXT NOT NULL
);

-- name: add_offer
INSERT OR IGNORE INTO offers (kind, title, price, currency, stars, starts, ends)
VALUES (:kind, :title, :price, :currency, :stars, :starts, :ends);

-- name: find_offer
SELECT id, title, price, currency, stars, starts, ends FROM offers
WHERE kind = :kind AND title = :title AND price = :price AND currency = :currency
    AND starts = :starts AND ends = :ends;

-- name: offer
SELECT kind, title FROM offers WHERE id = :id;

-- name: add_booking
INSERT OR IGNORE INTO bookings (reference, offer, title) VALUES (:reference, :offer, :title);

-- name: name_booking
UPDATE bookings SET code = :kind || '-' || id WHERE reference = :reference;

-- name: booking
SELECT code, bookings.title, price, currency, starts, ends, is_cancelled
FROM bookings JOIN offers ON offers.id = bookings.offer
WHERE reference = :key OR code = :key;

-- name: cancel
UPDATE bookings SET is_cancelled = 1 WHERE code = :code AND NOT is_cancelled;

-- name: note
INSERT INTO journal (act, code, title) VALUES (:act, :code, :title);

-- name: journal
SELECT act, code, title FROM journal ORDER BY id;
