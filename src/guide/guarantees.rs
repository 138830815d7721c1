//! What each fault costs with each backend, and the tests that show it.
//!
//! # At a glance
//!
//! ✓: never more than `limit` holders, as far as a holder can know. **+ limit**: at most that many more, until the earlier
//! holders learn of the loss. The time is how long until operation is normal after the fault has ended; for a crash, after the
//! last heartbeat. Fencing tokens strictly increase in every cell but those with a †.
//!
//! | fault | `Redis` | with Sentinel | as a cluster | `Redlock` | `Etcd` | `ZooKeeper` |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | a process that holds permits crashes | ✓ one lease | ✓ one lease | ✓ one lease | ✓ one lease | ✓ one lease and 1–2 s | ✓ 1¼ leases |
//! | a process is paused or cut off for longer than its lease | ✓ when it returns | ✓ when it returns | ✓ when it returns | ✓ when it returns | ✓ when it returns | ✓ when it returns |
//! | one of several servers fails (the master, the leader) | – | + limit, 2 s | + limit, 2 s | ✓ at once | ✓ an election; after a stopped leader resumes: + limit | ✓ an election |
//! | the server, or the majority, pauses or is unreachable | ✓ 2 s | ✓ 2 s | ✓ when it is complete | ✓ 2 s | ✓ an election | ✓ an election |
//! | it restarts with its data | ✓ 2 s | ✓ 2 s | ✓ when it is complete | ✓ at once | ✓ an election | ✓ an election |
//! | it restarts without its data, or is flushed | + limit, ⅓ lease | + limit, ⅓ lease | + limit, ⅓ lease | ✓ the longest lease (if all leases are equal) | + limit, at once † | + limit, one session † |
//! | its clock steps | ✓ at once | ✓ at once | ✓ at once | ✓ at once; those of a majority: + 1 | ✓ at once | ✓ at once |
//! | replies are lost, calls are executed late | ✓ at once | ✓ at once | ✓ at once | ✓ at once | ✓ at once | ✓ at once |
//! | a hash slot migrates | – | – | ✓ at once | – | – | – |
//!
//! A paused process does not detect its pause until it resumes and checks: only the [token](super::leases#tokens) protects
//! against what it writes before that. [`Memory`](crate::Memory) is part of its process, so none of these faults apply to it.
//!
//! The names in the tables below are those of tests in this crate. Tests that begin with `rule_`, and others of the conformance
//! suite, run over every backend and each way to reach Redis. In addition
//! `random_runs_with_all_faults_break_no_rule` simulates the client with all faults at once, in hundreds of
//! thousands of steps; and two processes run under load over each kind of server, while servers are paused, killed and cut off
//! at random and a witness counts the holders: `redis_keeps_the_limit_under_random_faults`,
//! `sentinel_keeps_the_limit_under_random_faults`, `cluster_keeps_the_limit_under_random_faults`,
//! `redlock_keeps_the_limit_under_random_faults`, `etcd_keeps_the_limit_under_random_faults`,
//! `zookeeper_keeps_the_limit_under_random_faults`.
//! A fault in which the backend keeps its state does not affect its tokens: where no test of tokens is named,
//! `rule_08_tokens_increase` covers it.
//!
//! # Redis
//!
//! | fault | limit | tokens increase | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | a process that holds permits crashes | kept | yes | one lease after its last heartbeat | `the_permits_of_a_killed_process_are_free_one_lease_later`, `rule_05_a_dead_node_frees_all_tickets`, `rule_08_tokens_increase_over_expiry` |
//! | a process is paused for longer than its lease | kept; not what it does before it detects the pause | yes | when it returns | `a_paused_holder_sees_its_loss_at_once_and_releases_no_other_permit`, `a_frozen_holder_loses_the_mutex_and_the_next_token_is_higher` |
//! | a process is paused for less | kept, and no permit is lost | yes | at once | `a_short_pause_loses_nothing` |
//! | a process is cut off | kept | yes | 2 s | `callers_survive_a_link_cut_towards_the_server`, `callers_survive_a_link_cut_towards_the_client`, `a_connection_that_is_dead_towards_the_server_is_replaced`, `a_connection_that_is_dead_towards_the_client_is_replaced`, `a_link_that_loses_everything_is_used_again_once_restored` |
//! | the server pauses | kept; a mutex is lost at its deadline | yes | 2 s | `callers_survive_a_paused_server`, `a_server_paused_for_longer_than_a_lease_evicts_no_holder`, `a_mutex_is_lost_at_its_deadline_even_while_a_renewal_hangs` |
//! | it restarts with its data | kept | yes | 2 s | `callers_survive_a_server_restarted_with_its_data`; for tokens see a step of its clock |
//! | it restarts without its data | at most `limit` more | yes | 2 s; the earlier holders learn of it a third of a lease later | `callers_survive_a_server_restarted_without_its_data`, `tokens_increase_over_a_flush_and_a_restart` |
//! | it is flushed, or evicts keys | at most `limit` more | yes | a third of a lease | `waiters_are_queued_again_after_a_flush`, `a_flush_loses_the_mutex_and_the_next_token_is_higher`, `rule_08_tokens_increase_over_a_flush`. An eviction is not tested: it is a flush of one name. A waiter that receives a mutex by hand-off before its process learns of the loss has the [lower token](super::queue#when-the-store-forgets) |
//! | it fails over, and its address moves | at most `limit` more | yes | 2 s | not tested: no test moves an address. For a process this is a restart of the server |
//! | its clock steps, or a process's | kept | yes | at once | `steps_of_the_server_clock_evict_no_holder`, `a_process_clock_one_hour_off_changes_nothing`, `tokens_increase_across_a_clock_step`. Tokens can decrease if it is flushed and its clock has fallen behind |
//! | replies are lost, calls are executed late | kept | yes | at once | `a_lost_reply_does_not_block_its_own_ticket`, `a_call_executed_after_its_retry_creates_no_permit_and_no_second_holder`, `random_faults_break_no_rule_and_block_no_waiter` |
//! | pushes are lost, or are refused | kept | yes | half a lease; a tenth of a second where they are refused | `rule_04_polling_suffices_after_a_release`, `without_channel_rights_waiting_is_slower_and_logs_one_warning`, `two_processes_without_channel_rights_still_alternate` |
//! | its memory is full | kept | yes | at once | `with_full_memory_permits_are_renewed_released_and_granted` |
//!
//! # Redis with Sentinel
//!
//! Everything listed for Redis, and:
//!
//! | fault | limit | tokens increase | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | the master crashes | at most `limit` more | yes | 2 s after the promotion | `sentinel_a_killed_master_is_replaced_under_load` |
//! | it pauses, and resumes as master | at most `limit` more, if it refuses writes when alone | yes | 2 s after the promotion | `sentinel_a_paused_master_is_replaced_under_load`. Without `min-replicas-to-write` both masters grant: not tested, since nothing is guaranteed then |
//! | a manual failover | at most `limit` more | yes | 2 s after the promotion | `a_manual_failover_is_followed`; the bound as above |
//! | some sentinels fail | kept | yes | at once | `failures_are_reported_soon` |
//! | all sentinels fail | kept: connected processes continue, others wait for the sentinels | yes | with the sentinels | `failures_are_reported_soon`. If the master crashes as well, this is an outage |
//! | the new master's clock is behind | as above | not if it is behind by more than the duration of the failover | – | not tested: nothing is guaranteed then |
//!
//! # Redis as a cluster
//!
//! Everything listed for Redis, name by name, and:
//!
//! | fault | limit | tokens increase | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | a master crashes | at most `limit` more, for its names | yes | 2 s after the promotion | `cluster_a_killed_master_is_replaced_under_load` |
//! | it pauses, and resumes as master | the same | yes | 2 s after the promotion | `cluster_a_paused_master_is_replaced_under_load` |
//! | slots migrate | kept; a permit is lost if the migration of its slot takes longer than a lease | yes | at once | `cluster_slots_move_under_load`, `a_migrating_slot_is_followed` |
//! | a master without a replica crashes, or the majority does | kept: no name is served until the cluster is complete; with `cluster-require-full-coverage no`, no name of that master | yes | when it is complete | `failures_are_reported_soon`, `a_missing_shard_delays_no_other_shard` |
//!
//! # Redlock
//!
//! | fault | limit | tokens increase | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | a process that holds permits crashes | kept | yes | one lease after its last heartbeat | `rule_05_a_dead_holder_expires_one_lease_after_its_last_heartbeat`, `rule_08_tokens_increase_over_expiry` |
//! | a process is paused for longer than its lease, or cut off | kept; not what it does before it detects the pause | yes | when it returns | `rule_09_a_late_acquire_after_a_flush_holds_for_at_most_one_lease`, `random_faults_with_a_limit_of_1` |
//! | a minority is down | kept | yes | at once | `two_of_five_may_be_down`, `tokens_increase_across_majorities_when_a_clock_is_ahead` |
//! | a minority is paused or slow | kept | yes | at once | `a_slow_server_delays_no_call_and_is_cleaned_up_later` |
//! | a majority is down or paused | kept; a holder loses the lock a lease later | yes | 2 s, or the longest lease if they lost their data | `with_three_of_five_down_no_lock_is_granted_and_holders_are_notified`, `a_failed_extension_frees_nothing` |
//! | servers restart with their data | kept | yes | at once | `servers_that_restart_with_their_data_vote_at_once` |
//! | they restart without their data, or are flushed | kept; one more if a majority loses its data at once and leases differ | yes | the longest lease | `a_server_that_restarted_empty_admits_no_second_holder`, `a_restarted_server_waits_for_the_longest_lease_of_any_node`, `a_holder_outlives_restarts_one_after_the_other`, `a_majority_that_loses_its_data_loses_longer_leases`, `the_first_lock_waits_for_one_lease` |
//! | keys are evicted | kept on a minority; on a majority one more | yes | a third of a lease | `a_lock_is_gone_only_if_a_majority_reports_it`, `rule_04_a_lost_permit_is_reported_gone`, `rule_08_tokens_increase_over_a_flush` |
//! | the clock of one steps | kept | yes | at once | `a_clock_step_of_one_server_admits_no_second_holder`, `tokens_increase_across_majorities_when_a_clock_is_ahead` |
//! | those of a majority step ahead | one more | yes | a third of a lease | not tested: the limit is not kept. It is an eviction on a majority |
//! | replies are lost, attempts and rollbacks are executed late | kept | yes | a few retries | `a_lost_answer_is_repaired`, `a_late_rollback_releases_no_other_lock`, `an_attempt_that_arrives_after_its_rollback_acquires_nothing`, `a_late_rollback_delays_other_clients_only_briefly`, `three_clients_that_lock_one_server_each_make_progress`, `three_clients_that_locked_one_server_each_need_few_retries` |
//!
//! # etcd
//!
//! | fault | limit | tokens increase | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | a process that holds permits crashes | kept | yes | a lease and 1 to 2 s | `the_permits_of_a_dead_process_are_free_soon_after_its_lease`, `rule_08_tokens_increase_over_expiry` |
//! | a process is paused for longer than its lease, or cut off | kept; not what it does before it detects the pause | yes | when it returns | `a_stall_evicts_no_live_holder`, `holders_are_notified_at_once_of_a_lost_lease`, `a_revoked_lease_loses_held_and_queued_tickets` |
//! | the leader pauses | kept | yes | an election | `a_paused_leader_loses_no_permit` |
//! | a leader that was stopped for longer than a lease resumes | at most `limit` more: it may end leases of live processes | yes | a third of a lease | occurs rarely in `etcd_keeps_the_limit_under_random_faults`, which tolerates it: it is a fault of etcd ([its page](super::etcd#what-differs)) |
//! | a node crashes | kept | yes | an election, if it was the leader | `a_server_is_killed_and_restarted`, `one_endpoint_is_down_from_the_start` |
//! | the majority is paused or down | kept: nothing is granted | yes | an election | `without_a_majority_nothing_is_granted_and_no_call_hangs` |
//! | all nodes restart with their data | kept | yes | an election | `a_watch_continues_after_a_restart_and_a_compaction` |
//! | it is wiped, or restored from an older snapshot | at most `limit` more | no: they restart | at once | `a_wiped_cluster_loses_all_permits_and_grants_new_ones` |
//! | its clock steps | kept | yes | at once | not tested: etcd reads the time from the kernel, which a test cannot intercept. Its leases use a clock that does not step; tokens are numbers of writes |
//! | replies are lost, calls are executed late | kept | yes | at once | `a_late_write_is_fenced_off`, `unknown_keys_under_the_lease_are_deleted`, `random_faults_break_no_rule_and_block_no_waiter` |
//!
//! # ZooKeeper
//!
//! | fault | limit | tokens increase | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | a process that holds permits crashes | kept | yes | 1¼ leases | `the_permits_of_a_dead_process_are_free_when_its_session_ends` |
//! | a process is paused for longer than its session, or cut off | kept; not what it does before it detects the pause | yes | when it returns | `callers_are_notified_of_the_end_of_a_session`, `a_session_ends_while_a_permit_is_held`, `the_end_of_a_session_loses_all_tickets` |
//! | the leader pauses or crashes | kept | yes | an election | `a_paused_leader_loses_no_permit`, `a_killed_leader_loses_no_permit` |
//! | the majority is down, and returns with its data | kept: nothing is granted | yes | an election | `permits_survive_an_outage_of_the_majority` |
//! | it is wiped | at most `limit` more | no: they restart | one session | `a_wiped_server_loses_all_permits_and_grants_new_ones` |
//! | nodes are deleted by hand | at most `limit` more | yes | a third of a lease | `rule_04_a_lost_permit_is_reported_gone`, `rule_08_tokens_increase_over_a_flush` |
//! | its clock steps | kept | yes | at once | `a_step_of_the_servers_clock_ends_no_session` |
//! | replies are lost, calls are executed late | kept | yes | at once | `a_connection_lost_while_connecting_creates_no_second_ticket`, `a_connection_lost_while_acquiring_creates_no_second_ticket`, `a_connection_lost_while_renewing_loses_no_permit`, `a_connection_lost_while_releasing_leaves_no_permit`, `a_connection_lost_while_queued_loses_no_grant`, `a_node_whose_creation_was_not_answered_is_adopted`, `a_delayed_call_that_was_given_up_changes_nothing_later`, `a_stuck_connection_is_replaced` |
