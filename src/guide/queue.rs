//! Who comes next: which order is promised, and what is saved by promising less.
//!
//! Every caller who wants in takes a ticket in the queue of its name, and the backend grants tickets in the order in
//! which they arrived, over all processes. ([`Redlock`](super::redlock) has no queue and promises no order.) To go
//! through the queue takes a trip to the backend for each permit. Two short cuts save it, both on unless turned off:
//!
//! | | hand-off | linger |
//! | --- | --- | --- |
//! | of | semaphores and mutexes | semaphores only |
//! | what | a permit that is released goes straight to the oldest caller of the same process who waits | a permit that is released while nobody waits stays in the process for a moment, for the next caller |
//! | when | for 10 ms after an answer that showed nobody waiting elsewhere; else 4 times and within 200 ms of its grant at most, then it goes back to the queue | for 10 ms at most, while the last answer is younger than that and showed nobody waiting anywhere and half the limit free |
//! | never | when less than a third of its lease is left, when more are in use than the limit of this process | the same, and when somebody waits; a shutdown gives it back at once |
//! | off | [`strict_fifo`](crate::CoordinatorBuilder::strict_fifo) | [`linger`](crate::CoordinatorBuilder::linger)`(Duration::ZERO)`, and `strict_fifo` |
//!
//! ## What order is promised
//!
//! * **With `strict_fifo`**: first in, first out over all processes, as the backend grants.
//! * **Otherwise**: first in, first out among the callers of one process. A caller in another process can be passed by
//!   those that came later, but only by so many: 4 for each permit that his turn would have freed, for about 200 ms and
//!   one hold; and by those of 10 ms, if his ticket arrived after the last answer that the other process heard. Nobody is
//!   starved: a permit that has made its hops goes back to the queue, however busy its process is.
//!
//! The limit is kept either way: a permit that changes hands is one permit, under one lease, and what its former holder
//! still has of it ([`PermitHandle`](crate::PermitHandle)) is worth nothing any more. The fencing token of a mutex rises
//! with every hop: it is the backend's token times 1,024, and one more for each.
//!
//! A newcomer is named to the backend at once. Except, without `strict_fifo`, where a permit from hand to hand may come first:
//! then he is named a little later, together with those who have come meanwhile,
//!
//! * when the last answer has become 10 ms old, where by it nobody waits elsewhere and every permit is in his process: who
//!   joins the queue elsewhere in these 10 ms stands before him, however many they are. The order of arrival over
//!   processes is exact to 10 ms;
//! * after 2 ms, where by the last answer, younger than 10 ms, every permit is taken and somebody waits elsewhere.
//!
//! ## When the store forgets
//!
//! A permit goes from hand to hand by what its process knows. If the backend has forgotten it since the last answer (a flush,
//! an [eviction](crate::Coordinator::evict)), the next one here gets what is nobody's any more, as its holder had until
//! then: for 200 ms after its grant at most, or 10 ms after an answer that showed nobody waiting elsewhere. The token of a mutex is then
//! lower than that of whoever was granted meanwhile, so that a store that compares tokens refuses it; and
//! [`unlock`](crate::MutexGuard::unlock) and [`release`](crate::Permit::release), which ask nobody when somebody here takes
//! over, answer `true`. With `strict_fifo` all of that comes from the backend.
//!
//! ## What it saves
//!
//! With many callers in one process and few processes nearly every trip: the README has the figures. Where holds are long
//! against a trip, as with requests to a language model, it makes no difference; where processes are many and each has a
//! caller now and then, neither.
//!
//! A permit that lingers counts as in use everywhere. [`Stats::lingering`](crate::Stats::lingering) and, for the permits of
//! its own process, [`inspect`](crate::Coordinator::inspect) tell it apart. A caller elsewhere that *tries* (and does not
//! wait) may be refused for it, for 10 ms at most and only when the rest of the limit has been taken since.
