//! Redis: what it promises, what it can lose when, and when to choose it; with Sentinel, as a cluster, over TLS.
//!
//! # When to choose it
//!
//! Whenever one holder too many for a few seconds can be borne, as with most limits. It is the fastest by far, names and
//! waiters by the thousand cost little, and most have one. One server (6.2 or later, or Valkey) is enough. Where it cannot
//! be borne, take [etcd](super::etcd) or [ZooKeeper](super::zookeeper).
//!
//! # What it promises
//!
//! First in, first out over all processes. Only the server's clock counts, and neither a stall nor a step of it takes a
//! permit from a process that is alive. Tokens rise over restarts and flushes too, as long as the server's clock has not
//! fallen behind meanwhile.
//!
//! **It can forget.** After a flush, an eviction, or a restart or failover that loses data, those who held are not counted
//! any more, and at most `limit` newcomers come in beside them. Those who held hear of it within a third of a lease. A
//! request that [goes on](crate::layers::OnLost::Continue) all the same is one too many until it ends. For a mutex: two
//! holders until the older one hears of it and stops; the newer one has the higher token. Replicas do not change this,
//! since Redis answers before they have heard.
//!
//! # What happens when
//!
//! | what happens | who holds | who waits | newcomers | normal again |
//! | --- | --- | --- | --- | --- |
//! | an [outage](super::failures#an-outage); a restart that keeps the data | in doubt, and valid again; a mutex is lost one lease after its last confirmation | waits on | refused after 1 s, or let pass | within 2 s of its return |
//! | a **restart** that loses its memory | lost, at the next renewal after its return | is back in line when the connection is; the order may be another | as in an outage | within 2 s for newcomers and waiters, a third of a lease for those who held |
//! | a **flush** (`FLUSHALL`) | lost, at the next renewal: within a third of a lease | is back in line within a third of a lease; the order may be another | come in at once | a third of a lease |
//! | a **failover** to a replica | as in an outage; what the replica had not heard of yet is lost as in a flush | as in an outage | as in an outage | within 2 s of the new master's answer at the same address; with `Redis::sentinel` and `Redis::cluster`, of its promotion |
//! | an **eviction** of our keys, since `maxmemory-policy` allows it | as in a flush, for that name | as in a flush | come in at once | a third of a lease |
//! | memory is full, with `noeviction` | renewed and given back as ever | get their turn as ever | come in as ever | – |
//! | writes are refused (disk full, too few replicas, loading) | as in an outage | as in an outage | as in an outage | within 2 s |
//! | its **clock steps**, forward or back, or it stalls for less than a lease | nobody alive loses anything | keeps the place | – | at once; what a dead process held may stay half a lease longer |
//! | scripts are flushed | nothing | nothing | nothing | at once |
//! | pushes get lost, or are not allowed | nothing | asks by itself: when a lease could have run out, within half a lease, or ten times a second where pushes are refused | nothing | – |
//! | somebody deletes our keys by hand | as in a flush. But one of the keys of a name, `…:meta`, gone twice within one lease, while the others stay, is not protected against | | | |
//!
//! An outage of more than an hour is a restart that loses its memory: by then the server has let our keys expire.
//!
//! # With Sentinel
//!
//! By [`Redis::sentinel`](crate::Redis::sentinel) (feature `redis-sentinel`). A failover is followed: whenever the connection
//! is lost, does not answer, or leads to a server that is read-only, all sentinels are asked anew, and what most of them
//! name is used if it says itself that it is a master. Calls work again within 2 s of a promotion.
//!
//! Replication is asynchronous, so a failover can lose the last grants. Those who hold go on, and the new master may grant
//! the same again: at most `limit` more, for about a lease. Tokens still rise, since they follow the clock: as long as that
//! of the new master is not behind by more than the failover took.
//!
//! A master that was only cut off or paused, and comes back before it knows of its replacement, answers those who still
//! talk to it: each side keeps the limit, both together do not. Let it refuse to write alone, at the price that it also
//! refuses when its only replica is down:
//!
//! ```text
//! min-replicas-to-write 1
//! min-replicas-max-lag 1
//! ```
//!
//! # As a cluster
//!
//! By [`Redis::cluster`](crate::Redis::cluster) (feature `redis-cluster`). The same promises, name by name: all keys of a name
//! are in one slot, and names are spread over the nodes. Slots that moved and masters that were replaced are followed within
//! each call's time; what the cluster refused is sent again, what it may have carried out is not.
//!
//! A failover can lose the last grants, as behind sentinels: at most `limit` more, for about a lease, of the names of that
//! master. Nobody is asked in vain for longer than the cluster takes to promote a replica (`cluster-node-timeout`, and about
//! a second). A master that is cut off from the majority stops answering after `cluster-node-timeout`; the two settings above
//! let it stop sooner.
//!
//! While a slot is on its way to another node, neither node answers for a name that has not all of its three keys
//! (`TRYAGAIN`): that is each name for which nobody waits. Who comes waits, and a permit is lost if the slot is on its way
//! for longer than its lease. Move slots one after another; where the cluster can move them at one stroke (atomic slot
//! migration), there is no such time.
//!
//! # Over TLS
//!
//! By a `rediss://` URL (feature `redis-tls`), in each of these ways; a private authority and a client certificate by
//! [`authority`](crate::Redis::authority) and [`client_certificate`](crate::Redis::client_certificate). It changes no promise.
