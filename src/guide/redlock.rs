//! Redlock: what it guarantees, what it can lose, and when to choose it.
//!
//! # When to choose it
//!
//! When the lock must stay available while a Redis server is down, and several servers are running anyway: three or five
//! independent ones, each on its own machine, none a replica of another. Every lock costs two round trips to every server, and a
//! waiter has to poll. In all other cases a single [Redis](super::redis) is faster, grants in order of arrival and has semaphores,
//! and a constraint in the database is safer than either.
//!
//! Redlock is a mutex. A semaphore with a limit above 1 is rejected when it is created: a majority of servers that each admit two
//! admits three.
//!
//! # What it guarantees
//!
//! * **One holder**, while fewer than half of the servers are down, slow or cut off, in any combination. If half of them or more
//!   are gone no lock is granted, and a holder loses its lock when its lease has expired.
//! * **A restart does not admit a second holder.** A server that restarted without its data (or was flushed) does not vote for as
//!   long as the longest lease in use: the locks that it has forgotten have expired by then. A marker key on each server
//!   records since when it has kept its data. If a majority loses its data at the same time, it also forgets the leases of others:
//!   give all processes the same [`lease`](crate::CoordinatorBuilder::lease), or a process with a short lease may be granted a lock
//!   beside one with a longer lease.
//! * **Fencing tokens** strictly increase over any majorities, even if the servers' clocks differ: the highest token of the
//!   majority counts, and a majority has stored it before the lock is granted. A server remembers a token that is
//!   ahead of its clock until the clock has passed it.
//! * **No order.** A waiter polls after a random pause of up to 200 ms; no waiter is next in line, and a process that
//!   locks and unlocks all the time can be luckier than others.
//!
//! # What it does not guarantee
//!
//! It relies on clocks that run at about the same speed: 1 % and 2 ms are subtracted for drift. If a server's clock is
//! set forward, its locks expire early, and so does its time without a vote; if that happens on a majority, two processes can hold
//! the lock. A process that was paused may act although its lease is over, as with every lock that has a lease. Martin Kleppmann
//! has shown both ("How to do distributed locking", 2016), and that the algorithm as published has no fencing token.
//! This implementation has: pass [`MutexGuard::token`](crate::MutexGuard::token) to whatever the lock protects, and let it reject
//! a lower one. Then two processes do no harm even if both consider themselves the holder. If a mistake costs money, do so,
//! or use a database or a consensus system.
//!
//! # What happens when
//!
//! | event | holders | waiters and new requests | normal again |
//! | --- | --- | --- | --- |
//! | fewer than half of the servers are down, slow or cut off | not affected | not affected | – |
//! | half of them or more are | are in doubt, and lost one lease after the last confirmation | as in an [outage](super::failures#an-outage) | within 2 s if they kept their data, after one longest lease if not |
//! | one **restarts** without its data, or is flushed | not affected, if a majority of the others has the lock; it is stored there again at the next renewal | not affected, if a majority of the others is available | it votes again one longest lease later |
//! | all restart without their data, or are flushed | lost, one lease after the last confirmation | wait for one of their own leases: if leases differ, there are two holders until the next renewal of the longer one | after one longest lease |
//! | they restart with their data | not affected | not affected | at once |
//! | keys are **evicted** on a majority | lost, at the next renewal | are admitted at once: two holders until then | after a third of a lease |
//! | a **clock steps** ahead by a lease, on a majority | the same | the same | the same |
//! | a clock steps back | not affected | the lock of a crashed process lives that much longer on this server. A server with a clock behind the start of its memory does not vote for one longest lease | by itself |
//!
//! Tokens increase over all of these, as long as one server of every majority keeps its data, or no clock has fallen behind.
//!
//! # The first lock
//!
//! New servers, and a new prefix, look like servers that lost their data. The very first lock is therefore granted one
//! lease (10 s unless set) after the first call to the servers, by a lock or a check. Until then
//! [`lock`](crate::Mutex::lock) waits and [`try_lock`](crate::Mutex::try_lock) is refused, since a lock that a server may have
//! forgotten may still be held.
