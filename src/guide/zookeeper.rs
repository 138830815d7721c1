//! ZooKeeper: what it guarantees, what it can lose, and when to choose it.
//!
//! # When to choose it
//!
//! Where an ensemble is available, for locks and limits that must hold over a change of the leader: the one process that does a
//! job, the one writer of a shard, the number of concurrent migrations. For thousands of permits per second, or for
//! queues of thousands of waiters, use [Redis](super::redis): in ZooKeeper each acquisition is a write that a majority of the
//! servers syncs to disk, and each change of a queue is sent to every process that waits in it.
//!
//! # What it guarantees
//!
//! Permits are granted first in, first out over all processes. Fencing tokens always increase: they are ZooKeeper's own
//! transaction ids, which continue over restarts. A majority of the servers has stored every grant.
//!
//! # What happens when
//!
//! | event | holders | waiters | new requests | normal again |
//! | --- | --- | --- | --- | --- |
//! | a server fails, or the leader changes | keep their permits | keep their position | wait | with the new leader |
//! | the majority is gone | are in doubt one lease after their last confirmation, and a mutex is lost then; what the ensemble still has afterwards is valid again | keep waiting | are rejected after 1 s, or admitted without a permit | with the majority |
//! | a process is cut off or paused for less than its lease | are not affected | are not affected | – | at once |
//! | a process is cut off or paused for longer than its session | have lost everything, and learn of it as soon as the process is back | move to the end of the queue | – | when it is back |
//! | a process crashes | – | – | get its permits when its session has expired | a quarter more than a lease after its last heartbeat, rounded up to the server's tick; never before the shortest session that the servers grant (4 s by default) |
//! | the whole ensemble is wiped | have lost everything, and learn of it when their session has expired; others may be admitted until then | move to the end of the queue | are admitted at once | one session later; tokens restart |
//! | nodes are deleted by hand | lose their permits at the next renewal, a third of a lease later at most | are enqueued again as late | – | after that |
//!
//! Only a wipe admits more than the limit, with one exception: a process that was paused for longer than its session continues
//! when it resumes, until it has checked. The token protects against that ([`leases`](super::leases)).
//!
//! # What differs
//!
//! * **The session is the lease.** A coordinator has one session; its timeout is a quarter more than the lease. The servers bound
//!   it: with a lease that is longer than their longest session (40 s by default) the check and every call fail with an error that
//!   names the bound. Raise `maxSessionTimeout`.
//! * **There is no grace** after everything stalled: a process without a session has lost its permits.
//! * **A try** enters the queue for a moment. Another try in that moment may be refused although a permit would have been free.
//! * **A limit that is raised** while its process waits is seen by the waiters behind it within half a lease, not at once.
//! * **`inspect`** shows the whole lease as the remaining lease of another process's ticket: only the servers know how much of it
//!   has elapsed.
//! * **No TLS.** That of the client crate would add a second TLS provider to the program. Where the network to the
//!   servers is not trusted, use a proxy beside the process.
//! * **A wrong password** cannot be distinguished from a missing right: ZooKeeper's `digest` scheme accepts any password.
//!
//! # Rights
//!
//! Below the node of the prefix: create, read, delete. The nodes that this crate creates give all rights to everyone, or with
//! `auth` to that user only. The node of the prefix, and the chroot, are created if they do not exist and the rights allow it.
