//! The rules that every backend keeps, as tests: written once, run over each backend.
//!
//! The name of a test says the rule and the backend: `conformance::memory::rule_03_…`. A new backend implements
//! [`Rig`](rig::Rig) and adds one line at the end of this file. The tests see a backend as a gate does: through
//! `Session`, with leases of a backend's own choice; they are part of the library's unit tests, since the contract is
//! private.

mod calls;
#[cfg(feature = "etcd")]
mod etcd_rig;
mod leases;
mod memory_rig;
mod model;
mod pauses;
mod peer;
mod places;
mod queue;
#[cfg(feature = "redis")]
mod redis_rig;
#[cfg(feature = "redlock")]
mod redlock_rig;
mod rig;
#[cfg(any(
    feature = "redis-cluster",
    feature = "redis-sentinel",
    feature = "redis-tls"
))]
mod shared_redis_rig;
mod tokens;
mod tools;
mod walk;
#[cfg(feature = "zookeeper")]
mod zookeeper_rig;

use rig::Rig;

/// Runs the suite over one backend. `$backend: $rig` runs all of it. `a mutex without a queue` leaves out what only a
/// backend with a queue of its own can keep: order, limits above 1, grants by somebody else's call, a view of everybody
/// who waits, and grace after a stall. `check_and_capabilities` sees to it that such a backend promises none of that.
macro_rules! conformance {
    ($backend:ident: $rig:ty) => {
        mod $backend {
            use super::*;

            conformance! { everywhere $rig }
            conformance! { with_a_queue $rig }
        }
    };
    ($backend:ident: $rig:ty, a mutex without a queue) => {
        mod $backend {
            use super::*;

            conformance! { everywhere $rig }
        }
    };
    (everywhere $rig:ty) => {
        conformance! { $rig => queue:
            rule_01_names_have_nothing_to_do_with_each_other
            rule_03_a_try_that_fails_leaves_nothing_behind
        }
        conformance! { $rig => calls:
            rule_02_a_lower_number_changes_nothing
            rule_02_a_lower_number_is_not_even_a_word_of_its_node
            rule_02_the_same_number_is_answered_again
            rule_02_the_same_number_is_carried_out_again_after_everything_ran_out
            rule_02_numbers_count_for_each_node_and_name
            rule_02_a_retried_enter_of_a_held_ticket_renews_it
            rule_02_a_try_of_a_held_ticket_renews_it
            rule_02_keep_never_creates
            rule_02_leave_of_an_unknown_ticket_is_fine
            rule_09_a_leave_wins_over_its_own_late_enter
            rule_09_a_leave_wins_for_as_long_as_the_node_is_remembered
            rule_09_a_late_enter_after_a_flush_holds_for_one_lease_at_most
        }
        conformance! { $rig => places:
            rule_04_a_waiter_whose_place_was_lost_is_back_after_its_next_enter
            rule_04_a_waiter_that_was_silent_for_too_long_is_back_after_its_next_enter
            rule_04_a_permit_that_was_lost_is_seen_to_be_gone
            rule_04_look_again_is_enough_when_a_permit_is_given_back
            rule_04_look_again_is_enough_when_a_holder_dies
            rule_04_a_grant_is_pushed_to_the_node_it_is_for
        }
        conformance! { $rig => leases:
            rule_05_keep_never_shrinks_a_deadline
            rule_05_a_dead_holder_goes_one_lease_after_its_last_word
            rule_05_a_dead_waiter_at_the_head_holds_nobody_up
            rule_06_the_clock_of_the_client_does_not_matter
            rule_07_a_long_lease_does_not_stretch_a_short_one
        }
        conformance! { $rig => tokens:
            rule_08_a_permit_keeps_its_token
            rule_08_a_push_and_a_retry_tell_the_same_token
            rule_08_tokens_increase_over_expiry
            rule_08_tokens_increase_over_a_flush
            rule_08_tokens_increase_after_the_name_was_forgotten
            rule_10_an_idle_name_leaves_nothing
            rule_10_many_idle_names_leave_nothing
            rule_10_after_a_crash_nothing_is_left_an_hour_later
        }
        conformance! { $rig => tools:
            evict_of_an_unknown_ticket_says_so
            check_and_capabilities
        }
        conformance! { $rig => walk:
            whatever_goes_wrong_with_a_limit_of_1
        }
    };
    (with_a_queue $rig:ty) => {
        conformance! { $rig => queue:
            rule_01_only_as_many_are_in_as_the_limit_says
            rule_01_each_node_is_held_to_its_own_limit
            rule_01_a_head_at_its_limit_holds_back_those_behind
            rule_01_lowering_a_limit_evicts_nobody
            rule_01_raising_a_limit_lets_the_queue_in
            rule_01_a_whole_batch_of_256
            rule_03_first_in_first_out_over_all_nodes
            rule_03_the_oldest_of_a_batch_is_first
            rule_03_a_newcomer_never_passes_the_queue
            rule_03_a_newcomer_does_not_profit_from_a_dead_holder
            rule_03_a_try_never_passes_the_queue
            rule_03_a_repeated_enter_keeps_its_place
            rule_03_one_call_leaves_and_enters_at_the_end
        }
        conformance! { $rig => model:
            rule_03_it_does_what_a_plain_queue_does
        }
        conformance! { $rig => calls:
            rule_02_keep_does_not_keep_a_mere_place
            rule_02_leave_says_whether_it_held
        }
        conformance! { $rig => places:
            rule_04_only_who_waits_is_told_to_look_again
            rule_04_what_a_call_granted_its_own_node_is_in_the_answer
        }
        conformance! { $rig => leases:
            rule_05_a_permit_ends_one_lease_after_its_nodes_last_word
            rule_05_keep_and_enter_move_the_deadline
            rule_05_a_permit_that_is_not_named_is_not_renewed
            rule_05_a_grant_by_another_counts_from_the_waiters_last_word
            rule_05_a_grant_by_another_has_the_waiters_lease
            rule_05_a_waiting_ticket_lives_one_lease_too
            rule_05_a_dead_node_frees_everything
            rule_07_a_short_lease_does_not_cut_a_long_one
        }
        conformance! { $rig => tokens:
            rule_08_tokens_increase
        }
        conformance! { $rig => pauses:
            a_stall_evicts_no_live_holder
            a_stall_evicts_nobody_through_another_name
            after_a_stall_the_dead_go_within_half_the_longest_lease
            a_second_stall_does_not_prolong_the_grace
            stalls_within_a_grace_do_not_prolong_it
            a_short_gap_does_not_hold_the_dead_for_half_of_a_long_lease
            who_is_a_little_late_keeps_what_nobody_took
            during_a_grace_a_silent_head_neither_blocks_nor_loses_its_place
        }
        conformance! { $rig => tools:
            evict_takes_out_a_holder_and_grants_the_next
            evict_takes_out_a_waiter
            inspect_shows_who_holds_and_who_waits
            inspect_shows_only_the_living
            inspect_lists_at_most_a_thousand
        }
        conformance! { $rig => walk:
            whatever_goes_wrong_no_rule_breaks_and_nobody_is_stuck
            whatever_goes_wrong_with_mixed_limits_and_leases
        }
    };
    ($rig:ty => $file:ident: $($test:ident)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                let rig = <$rig>::start().await;
                $file::$test(&rig).await;
            }
        )*
    };
}

conformance!(memory: memory_rig::MemoryRig);
#[cfg(feature = "redis")]
conformance!(redis: redis_rig::RedisRig);
#[cfg(feature = "redis")]
conformance!(redis_without_pushes: redis_rig::RedisRig<false>);
#[cfg(feature = "redlock")]
conformance!(redlock_of_3: redlock_rig::RedlockRig<3>, a mutex without a queue);
#[cfg(feature = "redlock")]
conformance!(redlock_of_5: redlock_rig::RedlockRig<5>, a mutex without a queue);
#[cfg(feature = "redis-tls")]
conformance!(redis_acl_over_tls: shared_redis_rig::SharedRig<shared_redis_rig::Tls>);
#[cfg(feature = "redis-sentinel")]
conformance!(redis_sentinel: shared_redis_rig::SharedRig<shared_redis_rig::Sentinel>);
#[cfg(feature = "redis-cluster")]
conformance!(redis_cluster: shared_redis_rig::SharedRig<shared_redis_rig::Cluster>);
#[cfg(feature = "zookeeper")]
conformance!(zookeeper: zookeeper_rig::ZooKeeperRig<1>);
#[cfg(feature = "zookeeper")]
conformance!(zookeeper_3: zookeeper_rig::ZooKeeperRig<3>);
#[cfg(feature = "etcd")]
conformance!(etcd: etcd_rig::EtcdRig<1>);
#[cfg(feature = "etcd")]
conformance!(etcd_3: etcd_rig::EtcdRig<3>);
