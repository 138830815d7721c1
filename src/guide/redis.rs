//! Redis: what it guarantees, what it can lose, and when to choose it; with Sentinel, as a cluster, over TLS.
//!
//! # When to choose it
//!
//! By default, where one holder too many for a few seconds is acceptable, as with most limits. It is by far the fastest, it
//! handles thousands of names and waiters cheaply, and most fleets have one. A single server (6.2 or later, or Valkey) is
//! sufficient. Where an additional holder is not acceptable, use [etcd](super::etcd) or [ZooKeeper](super::zookeeper).
//!
//! # What it guarantees
//!
//! Permits are granted first in, first out over all processes. Only the server's clock counts, and neither a stall nor a step of
//! that clock evicts a permit of a live process. Tokens increase over restarts and flushes too, unless the server's clock has
//! fallen behind meanwhile.
//!
//! **It can lose its state.** After a flush, an eviction, or a restart or failover that loses data, the earlier holders are no
//! longer counted, and at most `limit` new requests are admitted beside them. The earlier holders learn of it within a third of a
//! lease. A request that [continues](crate::layers::OnLost::Continue) nevertheless is one too many until it ends. A mutex has two
//! holders until the earlier one learns of it and stops; the later one has the higher token. Replicas do not change this, since
//! Redis replies before they have received the write.
//!
//! # What happens when
//!
//! | event | holders | waiters | new requests | normal again |
//! | --- | --- | --- | --- | --- |
//! | an [outage](super::failures#an-outage); a restart that keeps the data | are in doubt, and valid again; a mutex is lost one lease after its last confirmation | keep waiting | are rejected after 1 s, or admitted without a permit | within 2 s of its return |
//! | a **restart** that loses its memory | lose their permits at the next renewal after its return | are enqueued again when the connection is back; the order may change | as in an outage | within 2 s for new requests and waiters, a third of a lease for holders |
//! | a **flush** (`FLUSHALL`) | lose their permits at the next renewal: within a third of a lease | are enqueued again within a third of a lease; the order may change | are admitted at once | after a third of a lease |
//! | a **failover** to a replica | as in an outage; what the replica had not received is lost as in a flush | as in an outage | as in an outage | within 2 s of the new master's answer at the same address; with `Redis::sentinel` and `Redis::cluster`, of its promotion |
//! | an **eviction** of keys, if `maxmemory-policy` allows it | as in a flush, for that name | as in a flush | are admitted at once | after a third of a lease |
//! | memory is full, with `noeviction` | are renewed and released as usual | are granted as usual | are admitted as usual | – |
//! | writes are refused (disk full, too few replicas, loading) | as in an outage | as in an outage | as in an outage | within 2 s |
//! | its **clock steps**, forward or back, or it stalls for less than a lease | no live process loses anything | keep their position | – | at once; the permits of a crashed process may be held for half a lease longer |
//! | scripts are flushed | not affected | not affected | not affected | at once |
//! | pushes are lost, or not permitted | not affected | poll: when a lease could have expired, within half a lease, or ten times a second where pushes are refused | not affected | – |
//! | keys are deleted by hand | as in a flush. There is no protection against one case: the key `…:meta` of a name deleted twice within one lease while its other keys stay | | | |
//!
//! An outage of more than an hour is a restart that loses its memory: the keys have expired by then.
//!
//! # With Sentinel
//!
//! By [`Redis::sentinel`](crate::Redis::sentinel) (feature `redis-sentinel`). A failover is followed: whenever the connection
//! is lost, does not answer, or leads to a read-only server, all sentinels are queried again. The server that most of them
//! report is used if it confirms that it is a master. Calls work again within 2 s of a promotion.
//!
//! Replication is asynchronous, so a failover can lose the last grants. Their holders continue, and the new master may grant
//! the same permits again: at most `limit` more, for about a lease. Tokens still increase, since they follow the clock, unless
//! the clock of the new master is behind by more than the duration of the failover.
//!
//! A master that was only cut off or paused, and resumes before it learns of its replacement, answers the processes that are
//! still connected to it. Each side keeps the limit, both together do not. Configure the master to refuse writes when it is
//! alone; it then also refuses them when its only replica is down:
//!
//! ```text
//! min-replicas-to-write 1
//! min-replicas-max-lag 1
//! ```
//!
//! # As a cluster
//!
//! By [`Redis::cluster`](crate::Redis::cluster) (feature `redis-cluster`). The guarantees are the same, name by name: all keys of
//! a name are in one slot, and names are spread over the nodes. Migrated slots and replaced masters are followed within the
//! timeout of each call. A call that the cluster refused is sent again; a call that it may have executed is not.
//!
//! A failover can lose the last grants, as with Sentinel: at most `limit` more, for about a lease, for the names of that
//! master. Calls fail for no longer than the cluster takes to promote a replica (`cluster-node-timeout`, and about
//! a second). A master that is cut off from the majority stops answering after `cluster-node-timeout`; with the two settings above
//! it stops sooner.
//!
//! While a slot migrates to another node, neither node answers for a name that does not have all three of its keys
//! (`TRYAGAIN`): this is every name without queued tickets. New requests wait, and a permit is lost if the migration of its slot
//! takes longer than its lease. Migrate slots one after another. A cluster that can migrate them atomically has no such gap.
//!
//! # Over TLS
//!
//! By a `rediss://` URL (feature `redis-tls`), in each of these ways. A private certificate authority is set by
//! [`ca_certificate`](crate::Redis::ca_certificate), a client certificate by
//! [`client_certificate`](crate::Redis::client_certificate). The guarantees are the same.
