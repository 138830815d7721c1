//! etcd: what it guarantees, what it can lose, and when to choose it.
//!
//! # When to choose it
//!
//! For a mutex or a limit that must hold over a failover too, where an etcd (3.4 or later) is available. Each acquisition is a
//! write that a majority syncs to disk, so it is much slower than [Redis](super::redis) and not suited to thousands of permits
//! per second.
//!
//! # What it guarantees
//!
//! Permits are granted first in, first out over all processes. A grant is not lost when a node crashes or the leader changes,
//! with one exception described below, since etcd acknowledges only what a majority has stored. While there is no majority
//! nothing is granted, and permits expire with their leases. The fencing token of a mutex is the revision that created its ticket,
//! so it increases over every name of the cluster. It restarts if the whole cluster is wiped or restored from an older snapshot.
//!
//! # What happens when
//!
//! | event | holders | waiters | new requests | normal again |
//! | --- | --- | --- | --- | --- |
//! | a node is down, or the leader changes | keep their permits | keep their position | are served by another node at once, or by the new leader | after an election |
//! | a leader that was stopped for longer than a lease resumes | may lose their permits, see below, and learn of it within a third of a lease | are granted in turn | may be admitted | after a third of a lease |
//! | the majority is gone | are in doubt one lease after their last confirmation, and a mutex is lost then; what etcd still has afterwards is valid again | keep waiting | are rejected after 1 s, or admitted without a permit | with the majority |
//! | all nodes restart with their data | keep their permits | keep their position | as in an [outage](super::failures#an-outage) | at once |
//! | a process is cut off or paused for less than its lease | are not affected | are not affected | – | at once |
//! | a process is cut off or paused for longer than its lease | have lost everything, and learn of it as soon as the process is back | move to the end of the queue | – | when it is back |
//! | a process crashes | – | – | get its permits when its lease has expired, see below | a lease and 1 to 2 s later |
//! | the lease is revoked by hand, or the cluster is wiped | have lost everything, and learn of it at once | move to the end of the queue | are admitted at once | after that |
//!
//! # What differs
//!
//! * etcd counts in whole seconds and has a minimum TTL that depends on its election timeout (2 s by default). The lease of a
//!   process is a tenth longer than [`lease`](crate::CoordinatorBuilder::lease), rounded up to a whole second. The permits of a
//!   **crashed** process are free that much later, and up to one more second later, until etcd has checked its leases.
//! * A live process removes a ticket that it no longer renews (its runtime ended, for example) by itself, without this delay.
//! * etcd has no grace for pauses. A **process** that was stopped for longer than its lease has lost everything, including
//!   permits that were not granted to another node. When the **leader** is stopped or fails, the next one gives every lease its
//!   full time again.
//! * A **leader that was stopped** for longer than a lease may end leases of live processes when it resumes, before it learns
//!   that it is no longer the leader ([etcd 15247](https://github.com/etcd-io/etcd/issues/15247); rare since 3.4.31 and 3.5.13).
//!   The permits of these processes are free then: at most `limit` more requests are admitted until the processes learn of it.
//! * The build needs the protocol buffers compiler (`protobuf-compiler` and `libprotobuf-dev`).
