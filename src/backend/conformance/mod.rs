//! The conformance suite: one test for each rule of the backend contract, run over each backend.
//!
//! The name of a test contains the backend and the rule: `conformance::memory::rule_03_…`. A new backend implements
//! [`Fixture`](fixtures::Fixture) and adds one line at the end of this file. The tests use a backend as the client does,
//! through `Session`, with a lease that suits the backend. They are unit tests of the library because the contract is
//! private.

mod administration;
mod fixtures;
mod leases;
mod limits_and_order;
mod peer;
mod queue_entries;
mod queue_model;
mod random_faults;
mod repeated_calls;
mod stalls;
mod tokens;

use fixtures::Fixture;

/// Runs the suite over one backend. `$backend: $fixture` runs all of it. `a mutex without a queue` omits what requires a
/// queue at the backend: order, limits above 1, grants by another node's call, a list of all queued tickets, and grace
/// after a stall. `check_and_capabilities` asserts that such a backend promises none of it.
macro_rules! conformance {
    ($backend:ident: $fixture:ty) => {
        mod $backend {
            use super::*;

            conformance! { all_backends $fixture }
            conformance! { with_a_queue $fixture }
        }
    };
    ($backend:ident: $fixture:ty, a mutex without a queue) => {
        mod $backend {
            use super::*;

            conformance! { all_backends $fixture }
        }
    };
    (all_backends $fixture:ty) => {
        conformance! { $fixture => limits_and_order:
            rule_01_names_are_independent
            rule_03_a_refused_try_acquire_stores_nothing
        }
        conformance! { $fixture => repeated_calls:
            rule_02_a_lower_number_changes_nothing
            rule_02_a_lower_number_is_no_heartbeat
            rule_02_the_same_number_is_answered_again
            rule_02_the_same_number_is_executed_again_after_expiry
            rule_02_numbers_are_per_node_and_name
            rule_02_a_retried_acquire_of_a_held_ticket_renews_it
            rule_02_try_acquire_of_a_held_ticket_renews_it
            rule_02_renew_never_creates
            rule_02_release_of_an_unknown_ticket_is_a_no_op
            rule_09_a_release_wins_over_its_own_late_acquire
            rule_09_a_release_wins_while_the_node_is_remembered
            rule_09_a_late_acquire_after_a_flush_holds_for_at_most_one_lease
        }
        conformance! { $fixture => queue_entries:
            rule_04_a_lost_queue_entry_is_recreated_by_the_next_acquire
            rule_04_an_expired_queue_entry_is_recreated_by_the_next_acquire
            rule_04_a_lost_permit_is_reported_gone
            rule_04_polling_suffices_after_a_release
            rule_04_polling_suffices_after_a_holder_dies
            rule_04_a_grant_is_pushed_to_its_node
        }
        conformance! { $fixture => leases:
            rule_05_renew_never_shortens_a_deadline
            rule_05_a_dead_holder_expires_one_lease_after_its_last_heartbeat
            rule_05_a_dead_queue_head_blocks_no_waiter
            rule_06_the_client_clock_does_not_matter
            rule_07_a_long_lease_does_not_extend_a_short_one
        }
        conformance! { $fixture => tokens:
            rule_08_a_permit_keeps_its_token
            rule_08_a_push_and_a_retry_carry_the_same_token
            rule_08_tokens_increase_over_expiry
            rule_08_tokens_increase_over_a_flush
            rule_08_tokens_increase_after_the_name_expired
            rule_10_an_idle_name_leaves_nothing
            rule_10_many_idle_names_leave_nothing
            rule_10_a_crash_leaves_nothing_an_hour_later
        }
        conformance! { $fixture => administration:
            evict_of_an_unknown_ticket_returns_false
            check_and_capabilities
        }
        conformance! { $fixture => random_faults:
            random_faults_with_a_limit_of_1
        }
    };
    (with_a_queue $fixture:ty) => {
        conformance! { $fixture => limits_and_order:
            rule_01_no_more_permits_than_the_limit
            rule_01_each_node_has_its_own_limit
            rule_01_a_queue_head_at_its_limit_blocks_those_behind
            rule_01_lowering_a_limit_evicts_no_holder
            rule_01_raising_a_limit_grants_queued_tickets
            rule_01_a_whole_batch_of_256
            rule_03_first_in_first_out_over_all_nodes
            rule_03_the_oldest_of_a_batch_is_first
            rule_03_a_new_ticket_never_overtakes_the_queue
            rule_03_a_new_ticket_does_not_overtake_when_a_holder_dies
            rule_03_try_acquire_never_overtakes_the_queue
            rule_03_a_repeated_acquire_keeps_its_position
            rule_03_one_call_releases_and_enqueues_at_the_end
        }
        conformance! { $fixture => queue_model:
            rule_03_it_matches_a_plain_queue
        }
        conformance! { $fixture => repeated_calls:
            rule_02_renew_does_not_keep_a_queue_entry
            rule_02_release_reports_whether_it_was_held
        }
        conformance! { $fixture => queue_entries:
            rule_04_only_nodes_with_queued_tickets_get_poll_after
            rule_04_grants_to_the_calling_node_are_in_its_reply
        }
        conformance! { $fixture => leases:
            rule_05_a_permit_expires_one_lease_after_its_nodes_last_heartbeat
            rule_05_renew_and_acquire_move_the_deadline
            rule_05_a_permit_that_is_not_named_is_not_renewed
            rule_05_a_grant_by_another_node_counts_from_the_waiters_last_heartbeat
            rule_05_a_grant_by_another_node_has_the_waiters_lease
            rule_05_a_queued_ticket_expires_after_one_lease
            rule_05_a_dead_node_frees_all_tickets
            rule_07_a_short_lease_does_not_shorten_a_long_one
        }
        conformance! { $fixture => tokens:
            rule_08_tokens_increase
        }
        conformance! { $fixture => stalls:
            a_stall_evicts_no_live_holder
            a_stall_evicts_no_holder_through_another_name
            after_a_stall_dead_holders_expire_within_half_the_longest_lease
            a_second_stall_does_not_prolong_the_grace
            stalls_within_a_grace_do_not_prolong_it
            a_short_gap_does_not_keep_dead_holders_for_half_a_long_lease
            a_slightly_late_holder_keeps_an_untaken_permit
            during_a_grace_a_silent_queue_head_neither_blocks_nor_loses_its_position
        }
        conformance! { $fixture => administration:
            evict_removes_a_holder_and_grants_the_next
            evict_removes_a_queued_ticket
            inspect_lists_holders_and_queue
            inspect_lists_only_live_tickets
            inspect_lists_at_most_a_thousand
        }
        conformance! { $fixture => random_faults:
            random_faults_break_no_rule_and_block_no_waiter
            random_faults_with_mixed_limits_and_leases
        }
    };
    ($fixture:ty => $file:ident: $($test:ident)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                let fixture = <$fixture>::start().await;
                $file::$test(&fixture).await;
            }
        )*
    };
}

conformance!(memory: fixtures::memory::MemoryFixture);
#[cfg(feature = "redis")]
conformance!(redis: fixtures::redis::RedisFixture);
#[cfg(feature = "redis")]
conformance!(redis_without_pushes: fixtures::redis::RedisFixture<false>);
#[cfg(feature = "redlock")]
conformance!(redlock_of_3: fixtures::redlock::RedlockFixture<3>, a mutex without a queue);
#[cfg(feature = "redlock")]
conformance!(redlock_of_5: fixtures::redlock::RedlockFixture<5>, a mutex without a queue);
#[cfg(feature = "redis-tls")]
conformance!(redis_acl_over_tls: fixtures::redis_deployments::DeploymentFixture<fixtures::redis_deployments::Tls>);
#[cfg(feature = "redis-sentinel")]
conformance!(redis_sentinel: fixtures::redis_deployments::DeploymentFixture<fixtures::redis_deployments::Sentinel>);
#[cfg(feature = "redis-cluster")]
conformance!(redis_cluster: fixtures::redis_deployments::DeploymentFixture<fixtures::redis_deployments::Cluster>);
#[cfg(feature = "zookeeper")]
conformance!(zookeeper: fixtures::zookeeper::ZooKeeperFixture<1>);
#[cfg(feature = "zookeeper")]
conformance!(zookeeper_3: fixtures::zookeeper::ZooKeeperFixture<3>);
#[cfg(feature = "etcd")]
conformance!(etcd: fixtures::etcd::EtcdFixture<1>);
#[cfg(feature = "etcd")]
conformance!(etcd_3: fixtures::etcd::EtcdFixture<3>);
