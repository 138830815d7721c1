//! ZooKeeper: what it promises, what it can lose when, and when to choose it.
//!
//! # When to choose it
//!
//! Where there is an ensemble already, for locks and limits that must hold over a change of the leader: who is the one
//! process that does a job, who writes to a shard, how many may migrate at a time. For thousands of permits a second, or for
//! lines of thousands of waiters, take [Redis](super::redis): here each acquisition is a write that a majority of the servers syncs to disk,
//! and each change of a line is told to every process that waits in it.
//!
//! # What it promises
//!
//! First in, first out over all processes. Fencing tokens that always increase: they are ZooKeeper's own transaction
//! numbers, which go on over restarts. A permit that was granted is known to a majority of the servers.
//!
//! # What happens when
//!
//! | what happens | who holds | who waits | newcomers | normal again |
//! | --- | --- | --- | --- | --- |
//! | a server dies, or the leader changes | keeps what he has | keeps his place | wait | with the new leader |
//! | the majority is gone | is in doubt one lease after his last confirmation, a mutex is lost then; what the ensemble still has afterwards is valid again | waits on | refused after 1 s, or let pass | with the majority |
//! | a process is cut off, or paused, for less than its lease | nothing | nothing | – | at once |
//! | a process is cut off, or paused, for longer than its session | everything is lost, and he is told as soon as he is back | stands at the end of the line | – | when he is back |
//! | a process dies | – | – | get what it had when its session has ended | a quarter more than a lease after its last sign of life, rounded up to the server's tick; never before the shortest session that the servers grant (4 s by default) |
//! | the whole ensemble is wiped | everything is lost, and he is told when his session is over; others may be in until then | stands at the end of the line | come in at once | one session later; tokens start anew |
//! | somebody deletes our nodes | lost at the next renewal, a third of a lease later at most | is back in line as late | – | then |
//!
//! Nothing but a wipe lets in more than the limit, but for one thing: who is paused for longer than his session acts on, when he wakes, until
//! he has looked. That is what the token is for ([`leases`](super::leases)).
//!
//! # What differs
//!
//! * **The session is the lease.** A coordinator has one; its timeout is a quarter more than the lease. The servers bound it:
//!   with a lease that is longer than their longest session (40 s by default) a check and every call fail, and say so: raise
//!   `maxSessionTimeout`.
//! * **There is no grace** after a stall of everything: whose session has ended is out.
//! * **A try** takes a place in the line for a moment. Another try in that moment may be refused though there would have been
//!   room.
//! * **A limit that is raised** while its process waits is seen by others who stand behind within half a lease, not at once.
//! * **`inspect`** shows the whole lease as what is left of another process's ticket: how far it has run only the servers know.
//! * **No TLS.** That of the client crate would bring a second provider of it into your program. Where the way to the
//!   servers is not your own, let a proxy beside the process carry it.
//! * **A wrong password** is not told apart from a missing right: ZooKeeper's `digest` scheme knows no wrong ones.
//!
//! # Rights
//!
//! Below the node of the prefix: create, read, delete. Our own nodes give all rights to everybody, or with `auth` to that user
//! only. The node of the prefix, and the chroot, are made if they are not there and may be.
