//! etcd: what it promises, what it can lose when, and when to choose it.
//!
//! # When to choose it
//!
//! For a mutex or a limit that must hold over a failover too, where an etcd (3.4 or later) is at hand. Each acquisition is a
//! write that a majority syncs to disk, so it is slower than [Redis](super::redis) by far, and no place for thousands of
//! permits a second.
//!
//! # What it promises
//!
//! First in, first out over all processes, and nothing granted is lost when a node dies or the leader changes, but for one
//! case (see below): etcd answers only what a majority has stored. While there is no majority nothing is granted, and permits run out by their leases.
//! The fencing token of a mutex is the revision that created its ticket, so it rises over every name of the cluster; it
//! starts anew if the whole cluster is wiped or restored from an older snapshot.
//!
//! # What happens when
//!
//! | what happens | who holds | who waits | newcomers | normal again |
//! | --- | --- | --- | --- | --- |
//! | a node is down, or the leader changes | keeps what he has | keeps his place | another node is asked at once; with a new leader in any case | an election later |
//! | a leader that was stopped for longer than a lease goes on | may be lost, see below, and he is told within a third of a lease | gets his turn | may come in | a third of a lease |
//! | the majority is gone | is in doubt one lease after his last confirmation, a mutex is lost then; what etcd still has afterwards is valid again | waits on | refused after 1 s, or let pass | with the majority |
//! | everything restarts, with its data | keeps what he has | keeps his place | as in an [outage](super::failures#an-outage) | at once |
//! | a process is cut off, or paused, for less than its lease | nothing | nothing | – | at once |
//! | a process is cut off, or paused, for longer than its lease | everything is lost, and he is told as soon as he is back | stands at the end of the line | – | when he is back |
//! | a process dies | – | – | get what it had when its lease has run out, see below | a lease and 1 to 2 s later |
//! | the lease is revoked by hand, or the cluster wiped | everything is lost, and he is told at once | stands at the end of the line | come in at once | then |
//!
//! # What differs
//!
//! * etcd counts in whole seconds, and has a least time that depends on its election timeout (2 s by default). The lease of
//!   a process is a tenth longer than [`lease`](crate::CoordinatorBuilder::lease), rounded up to a whole second: what a
//!   process that **died** held is free that much later, and up to a second after that until etcd has looked.
//! * What a process that lives does not renew any more (its runtime ended, say) it removes itself, to the point.
//! * etcd forgives no pause. A **process** that was stopped for longer than its lease has lost everything, also what
//!   nobody else has taken. When the **leader** is stopped or lost, the next one gives every lease its full time again.
//! * A **leader that was stopped** for longer than a lease may end leases that are alive when it goes on, before it hears
//!   that it leads no more ([etcd 15247](https://github.com/etcd-io/etcd/issues/15247); rare since 3.4.31 and 3.5.13). What
//!   their processes held is free then: at most `limit` more come in until those are told.
//! * To build it takes the protocol buffers compiler (`protobuf-compiler` and `libprotobuf-dev`).
