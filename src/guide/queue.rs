//! The order in which permits are granted, and the two shortcuts that trade exact order for round trips: hand-off and linger.
//!
//! Each caller takes a ticket in a named queue, and the backend grants tickets in order of arrival, over all processes.
//! ([`Redlock`](super::redlock) has no queue and guarantees no order.) Going through the queue costs a round trip for each permit.
//! Two shortcuts avoid it, both enabled by default:
//!
//! | | hand-off | linger |
//! | --- | --- | --- |
//! | applies to | semaphores and mutexes | semaphores only |
//! | what it does | a released permit passes directly to the oldest waiter of the same process | a permit that is released while nothing waits in the process stays there for a moment, for the next caller |
//! | when | for 10 ms after a reply that showed no ticket queued elsewhere; otherwise at most 4 times and within 200 ms of its grant, after which it returns to the queue | for at most 10 ms, while the last reply is younger than that and showed no queued ticket and half of the limit free |
//! | never | if less than a third of its lease is left, or more permits are in use than the limit of this process | likewise, and if a caller waits; a shutdown releases it at once |
//! | disabled by | [`strict_fifo`](crate::CoordinatorBuilder::strict_fifo) | [`linger`](crate::CoordinatorBuilder::linger)`(Duration::ZERO)`, and `strict_fifo` |
//!
//! ## Which order is guaranteed
//!
//! * **With `strict_fifo`**: first in, first out over all processes, as the backend grants.
//! * **Otherwise**: first in, first out among the callers of one process. A waiter can be overtaken by later callers of another
//!   process, but only by a bounded number: 4 for each permit that its turn would have freed, for about 200 ms and one hold; and
//!   by those of 10 ms, if its ticket arrived after the last reply that the other process received. No waiter starves: a permit
//!   that has used up its hand-offs returns to the queue, however busy its process is.
//!
//! The limit holds either way. A permit that is handed off is one permit, under one lease, and a handle of its former holder
//! ([`PermitHandle`](crate::PermitHandle)) is void. The fencing token of a mutex increases with every hand-off: it is the
//! backend's token times 1,024, plus one for each hand-off.
//!
//! A new waiter is sent to the backend at once. The exception, without `strict_fifo`, is a wait in which a hand-off may serve it
//! sooner. Then it is sent a little later, together with those that have arrived meanwhile:
//!
//! * when the last reply is 10 ms old, if by that reply no ticket is queued elsewhere and every permit is held by this process.
//!   All tickets that are queued elsewhere within these 10 ms precede it, however many there are. The order of arrival over
//!   processes is exact to 10 ms;
//! * after 2 ms, if by the last reply, younger than 10 ms, every permit is in use and a ticket is queued elsewhere.
//!
//! ## When the store forgets
//!
//! A hand-off relies on what the process knows. If the backend has lost the ticket since the last reply (by a flush, or an
//! [eviction](crate::Coordinator::evict)), the next waiter of this process receives a permit that the backend does not count, as
//! its holder had until then: for at most 200 ms after its grant, or 10 ms after a reply that showed no ticket queued elsewhere.
//! The token of a mutex is then lower than that of a holder that was granted meanwhile, so a store that compares tokens rejects
//! it. [`unlock`](crate::MutexGuard::unlock) and [`release`](crate::Permit::release) return `true` in this case, since they make
//! no call to the backend when a waiter of this process takes over. With `strict_fifo` all of this is decided by the backend.
//!
//! ## What it saves
//!
//! With many callers per process and few processes, nearly every round trip: the README has the figures. It makes no difference
//! where holds are long compared with a round trip, as with requests to a language model, nor where many processes have a
//! caller each now and then.
//!
//! A lingering permit counts as in use everywhere. [`Stats::lingering`](crate::Stats::lingering) shows it, as does
//! [`inspect`](crate::Coordinator::inspect) for the permits of its own process. A caller in another process that *tries* (and
//! does not wait) may be refused because of it, for at most 10 ms and only if the rest of the limit has been acquired since.
