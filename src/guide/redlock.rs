//! Redlock: what it promises, what it can lose when, and when to choose it.
//!
//! # When to choose it
//!
//! When one Redis is too little, because the lock must be to be had while it is down, and when you run several anyway:
//! three, five, independent ones, each on a machine of its own, none a replica of another. Every lock costs two trips to
//! every server, and who waits has to ask again and again. For all else one [Redis](super::redis) is faster, serves in order
//! of arrival and has semaphores; and a constraint in your database is safer than either.
//!
//! It is a mutex. A semaphore with a limit above 1 is refused when it is made: servers that each let in two let in three by
//! majority.
//!
//! # What it promises
//!
//! * **One holder**, while fewer than half of the servers are down, slow, or cut off from you, in any combination. With
//!   half of them or more gone nobody gets in, and who holds loses the lock when his lease has run out.
//! * **A restart does not let a second one in.** A server that came back empty (or was flushed) has no vote for as long
//!   as the longest lease that anybody has used: what it has forgotten has run out by then. A marker key of each server
//!   holds since when it remembers. How long a lease others have is forgotten too when a majority forgets at once: give all
//!   processes the same [`lease`](crate::CoordinatorBuilder::lease), or a short one may get in beside a longer one then.
//! * **Fencing tokens** strictly increase, over any majorities, and though the servers' clocks differ: the highest of the
//!   majority counts, and a majority has stored it before the lock is given out. A server remembers a token that is
//!   ahead of its clock until the clock has passed it.
//! * **No order.** Who waits asks again after a random pause of up to 200 ms; none of those who wait is next, and a
//!   process that locks and unlocks all the time can be luckier than others.
//!
//! # What it does not promise
//!
//! It trusts clocks to go at about the same speed: 1 % and 2 ms are taken off for their drift. A server whose clock is
//! set forward forgets its locks early, and also its time without a vote; when a majority of them is, two can hold. A
//! process that was paused may act although its lease is over, as with every lock that has a lease. Martin Kleppmann
//! has shown both ("How to do distributed locking", 2016), and that the algorithm as published has no fencing token.
//! This one has: hand [`MutexGuard::token`](crate::MutexGuard::token) to whatever the lock protects, and let that refuse
//! an older one. Two processes then do no harm even when they both believe they hold. If a mistake costs money, do so,
//! or use a database or a consensus system.
//!
//! # What happens when
//!
//! | what happens | who holds | who waits and newcomers | normal again |
//! | --- | --- | --- | --- |
//! | fewer than half are down, slow or cut off | nothing | nothing | – |
//! | half or more are | in doubt, and lost one lease after the last confirmation | as in an [outage](super::failures#an-outage) | within 2 s if they remember, one longest lease if they came back empty |
//! | one **restarts** empty, or is flushed | nothing, if a majority of the others knows of the lock; it is told anew at the next renewal | nothing, if a majority of the others is there | it has its vote back one longest lease later |
//! | all restart empty, or are flushed | lost, one lease after the last confirmation | wait for a lease of their own: where leases differ, two holders until the longer one's next renewal | one longest lease later |
//! | they restart with their data | nothing | nothing | at once |
//! | keys are **evicted**, on a majority | lost, at the next renewal | come in at once: two holders until then | a third of a lease |
//! | a **clock steps** ahead by a lease, on a majority | the same | the same | the same |
//! | a clock steps back | nothing | a dead holder's lock there lives longer by that; a server whose clock is behind the time it began to remember has no vote for one longest lease | by itself |
//!
//! Tokens rise over all of these, as long as one server of every majority remembers, or no clock has fallen behind.
//!
//! # The first lock
//!
//! New servers, and a new prefix, look like servers that came back empty. The very first lock is therefore granted one
//! lease (10 s unless set) after the servers have first been asked for anything, by a lock or a check; until then
//! [`lock`](crate::Mutex::lock) waits and [`try_lock`](crate::Mutex::try_lock) is refused, for what a server may have
//! forgotten may still be held.
