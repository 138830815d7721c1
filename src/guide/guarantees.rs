//! Which fault costs what, backend by backend, and the tests that show it.
//!
//! # At a glance
//!
//! ✓: never more than `limit` hold at a time, by what each may believe of itself. **+ limit**: at most so many more, until
//! those who held have heard of it. The time is how long until all is as before, after the fault has ended; for a process that
//! died, after its last word. Fencing tokens strictly increase in every cell but those with a †.
//!
//! | fault | `Redis` | with Sentinel | as a cluster | `Redlock` | `Etcd` | `ZooKeeper` |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | a process that holds dies | ✓ one lease | ✓ one lease | ✓ one lease | ✓ one lease | ✓ a lease and 1–2 s | ✓ 1¼ leases |
//! | a process is paused or cut off for longer than its lease | ✓ at its return | ✓ at its return | ✓ at its return | ✓ at its return | ✓ at its return | ✓ at its return |
//! | one of several servers is lost (the master, the leader) | – | + limit, 2 s | + limit, 2 s | ✓ at once | ✓ an election; a leader that was stopped: + limit | ✓ an election |
//! | the server, or the majority, pauses or is out of reach | ✓ 2 s | ✓ 2 s | ✓ when it is whole | ✓ 2 s | ✓ an election | ✓ an election |
//! | it restarts with its data | ✓ 2 s | ✓ 2 s | ✓ when it is whole | ✓ at once | ✓ an election | ✓ an election |
//! | it restarts without its data, or is flushed | + limit, ⅓ lease | + limit, ⅓ lease | + limit, ⅓ lease | ✓ the longest lease (if all have the same) | + limit, at once † | + limit, a session † |
//! | its clock steps | ✓ at once | ✓ at once | ✓ at once | ✓ at once; a majority's: + 1 | ✓ at once | ✓ at once |
//! | answers get lost, calls run late | ✓ at once | ✓ at once | ✓ at once | ✓ at once | ✓ at once | ✓ at once |
//! | a slot moves | – | – | ✓ at once | – | – | – |
//!
//! A process that was paused does not know of it until it looks: what it writes before that, only the
//! [token](super::leases#tokens) can stop. [`Memory`](crate::Memory) is part of its process, so that none of this befalls it.
//!
//! In the tables below a name is that of a test in this crate. Those that begin with `rule_`, and others of the suite in
//! `tests/conformance`, run over every backend, and each way to reach Redis. Beside them stands
//! `random_runs_with_all_faults_break_no_rule`: the part above the backends, with all faults at once, in hundreds of
//! thousands of steps; and two processes under load over each kind of server, while servers are paused, killed and cut off
//! at random and a witness counts who is inside: `redis_faults_under_load`, `sentinel_faults_under_load`,
//! `cluster_faults_under_load`, `redlock_faults_under_load`, `etcd_faults_under_load`, `zookeeper_faults_under_load`.
//! A fault in which the store forgets nothing does not touch its tokens: where no test of them is named,
//! `rule_08_tokens_increase` stands for it.
//!
//! # Redis
//!
//! | fault | limit | tokens rise | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | a process that holds dies | kept | yes | one lease after its last word | `the_permits_of_a_killed_process_come_back_one_lease_later`, `rule_05_a_dead_node_frees_everything`, `rule_08_tokens_increase_over_expiry` |
//! | a process is paused beyond its lease | kept; what it does in its pause nobody can prevent | yes | at its return | `a_holder_that_stood_still_learns_its_loss_at_once_and_frees_nobody_else`, `a_frozen_holder_has_lost_it_and_the_next_token_is_higher` |
//! | a process is paused for less | kept, and nothing is lost | yes | at once | `a_short_pause_loses_nothing` |
//! | a process is cut off | kept | yes | 2 s | `a_link_that_is_cut_towards_the_server`, `a_link_that_is_cut_towards_the_client`, `a_connection_that_is_dead_towards_the_server_is_replaced`, `a_connection_that_is_dead_towards_the_client_is_replaced`, `a_link_on_which_everything_is_lost_is_used_again_when_it_is_back` |
//! | the server pauses | kept; a mutex is lost at its deadline | yes | 2 s | `a_paused_server`, `a_server_that_stands_still_for_longer_than_a_lease_evicts_nobody`, `a_mutex_is_lost_at_its_deadline_even_while_a_renewal_hangs` |
//! | it restarts with its data | kept | yes | 2 s | `a_server_that_is_killed_and_comes_back_with_its_data`; tokens as with a step of its clock |
//! | it restarts without | at most `limit` more | yes | 2 s; those who held hear of it a third of a lease later | `a_server_that_is_killed_and_comes_back_empty`, `tokens_rise_over_a_flush_and_a_restart` |
//! | it is flushed, or evicts our keys | at most `limit` more | yes | a third of a lease | `who_waits_is_back_in_the_queue_after_everything_was_flushed`, `a_flush_loses_it_and_says_so_and_the_next_token_is_higher`, `rule_08_tokens_increase_over_a_flush`. An eviction is not tested: it is a flush of one name. Who gets a mutex from hand to hand before its process has heard of it has the [lower token](super::queue#when-the-store-forgets) of who has lost it |
//! | it fails over, and its address moves | at most `limit` more | yes | 2 s | not tested: nothing moves an address here. To a process it is a restart of the server |
//! | its clock steps, or a process's | kept | yes | at once | `steps_of_the_servers_clock_evict_nobody`, `a_process_whose_clock_is_an_hour_off_is_like_any_other`, `tokens_rise_over_a_clock_that_steps`. Not kept: tokens, if it is flushed and its clock has fallen behind |
//! | answers get lost, calls run late | kept | yes | at once | `a_lost_answer_makes_nobody_wait_for_himself`, `a_call_that_runs_after_its_retry_makes_no_permit_and_no_second_holder`, `whatever_goes_wrong_no_rule_breaks_and_nobody_is_stuck` |
//! | pushes get lost, or are refused | kept | yes | half a lease; ten times a second where they are refused | `rule_04_look_again_is_enough_when_a_permit_is_given_back`, `without_the_right_to_the_channels_waiting_is_slower_and_one_warning_says_so`, `two_processes_that_may_neither_publish_nor_listen_still_take_turns` |
//! | its memory is full | kept | yes | at once | `when_memory_is_full_permits_are_renewed_released_and_handed_on` |
//!
//! # Redis with Sentinel
//!
//! All of the above, and:
//!
//! | fault | limit | tokens rise | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | the master dies | at most `limit` more | yes | 2 s after the promotion | `sentinel_a_killed_master_is_replaced_under_load` |
//! | it pauses, and comes back as if nothing had been | at most `limit` more, if it may not write alone | yes | 2 s after the promotion | `sentinel_a_paused_master_is_replaced_under_load`. Without `min-replicas-to-write` both grant: not tested, since nothing is promised then |
//! | a failover by hand | at most `limit` more | yes | 2 s after the promotion | `a_failover_by_hand_is_followed`; the bound as above |
//! | some sentinels are lost | kept | yes | at once | `what_is_wrong_is_said_soon` |
//! | all sentinels are lost | kept: who is connected goes on; who is not waits for them | yes | with the sentinels | `what_is_wrong_is_said_soon`. That the master dies then too is an outage |
//! | the new master's clock is behind | as above | by more than the failover took: no | – | not tested: nothing is promised then |
//!
//! # Redis as a cluster
//!
//! All of what is said of Redis, name by name, and:
//!
//! | fault | limit | tokens rise | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | a master dies | at most `limit` more, of its names | yes | 2 s after the promotion | `cluster_a_killed_master_is_replaced_under_load` |
//! | it pauses, and comes back as if nothing had been | the same | yes | 2 s after the promotion | `cluster_a_paused_master_is_replaced_under_load` |
//! | slots move | kept; a permit is lost if its slot is on its way for longer than a lease | yes | at once | `cluster_slots_move_under_load`, `a_slot_on_its_way_is_followed` |
//! | a master dies that has no replica, or the majority does | kept: no name is served until it is whole; with `cluster-require-full-coverage no`, none of that master's | yes | when it is whole | `what_is_wrong_is_said_soon`, `a_part_that_is_gone_keeps_nobody_waiting` |
//!
//! # Redlock
//!
//! | fault | limit | tokens rise | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | a process that holds dies | kept | yes | one lease after its last word | `rule_05_a_dead_holder_goes_one_lease_after_its_last_word`, `rule_08_tokens_increase_over_expiry` |
//! | a process is paused beyond its lease, or cut off | kept; what it does in its pause nobody can prevent | yes | at its return | `rule_09_a_late_enter_after_a_flush_holds_for_one_lease_at_most`, `whatever_goes_wrong_with_a_limit_of_1` |
//! | a minority is down | kept | yes | at once | `two_of_five_may_be_down`, `tokens_rise_across_majorities_though_a_clock_is_ahead` |
//! | a minority is paused or slow | kept | yes | at once | `a_slow_server_slows_nobody_and_is_cleaned_when_it_is_back` |
//! | a majority is down or paused | kept; who holds loses the lock a lease later | yes | 2 s, or the longest lease where they come back empty | `with_three_of_five_down_nobody_gets_in_and_who_holds_learns_of_it`, `a_failed_extension_frees_nothing` |
//! | servers restart with their data | kept | yes | at once | `servers_that_come_back_with_their_data_vote_at_once` |
//! | they restart without, or are flushed | kept; one more if a majority forgets at once and leases differ | yes | the longest lease | `a_server_that_came_back_empty_lets_no_second_holder_in`, `it_waits_for_the_longest_lease_of_anybody`, `a_holder_outlives_restarts_one_after_the_other`, `a_majority_that_forgets_everything_forgets_who_had_a_longer_lease`, `the_first_lock_waits_for_one_lease` |
//! | keys are evicted | kept on a minority; on a majority one more | yes | a third of a lease | `gone_is_said_only_by_a_majority`, `rule_04_a_permit_that_was_lost_is_seen_to_be_gone`, `rule_08_tokens_increase_over_a_flush` |
//! | the clock of one steps | kept | yes | at once | `one_clock_that_steps_lets_nobody_in`, `tokens_rise_across_majorities_though_a_clock_is_ahead` |
//! | those of a majority step ahead | one more | yes | a third of a lease | not tested: it is not kept. It is an eviction on a majority |
//! | answers get lost, attempts and roll-backs come late | kept | yes | a few retries | `a_lost_answer_is_made_good`, `a_late_roll_back_takes_nothing_from_anybody`, `an_attempt_that_arrives_after_its_roll_back_takes_nothing`, `a_roll_back_that_arrives_late_delays_nobody_for_long`, `three_servers_and_three_clients_that_take_one_each`, `three_that_took_one_each_need_a_few_retries_only` |
//!
//! # etcd
//!
//! | fault | limit | tokens rise | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | a process that holds dies | kept | yes | a lease and 1 to 2 s | `the_permits_of_a_dead_process_are_free_soon_after_its_lease`, `rule_08_tokens_increase_over_expiry` |
//! | a process is paused beyond its lease, or cut off | kept; what it does in its pause nobody can prevent | yes | at its return | `a_stall_evicts_no_live_holder`, `holders_are_notified_at_once_of_a_lost_lease`, `a_revoked_lease_loses_held_and_queued_tickets` |
//! | the leader pauses | kept | yes | an election | `the_leader_is_paused` |
//! | a leader that was stopped for longer than a lease goes on | at most `limit` more: it may end leases that are alive | yes | a third of a lease | seldom met, and then excused, by `etcd_faults_under_load`: it is a fault of etcd ([its page](super::etcd#what-differs)) |
//! | a node dies | kept | yes | an election, if it led | `a_server_is_killed_and_restarted`, `one_endpoint_is_down_from_the_start` |
//! | the majority is paused or down | kept: nobody gets in | yes | an election | `without_a_majority_nothing_is_granted_and_no_call_hangs` |
//! | all of it restarts with its data | kept | yes | an election | `a_watch_continues_after_a_restart_and_a_compaction` |
//! | it is wiped, or restored from an older snapshot | at most `limit` more | no: they start anew | at once | `a_wiped_cluster_loses_all_permits_and_grants_new_ones` |
//! | its clock steps | kept | yes | at once | not tested: etcd asks the kernel for the time, past all that a test could put before it. Its leases go by a clock that does not step; tokens are numbers of writes |
//! | answers get lost, calls run late | kept | yes | at once | `a_late_write_is_fenced_off`, `unknown_keys_under_the_lease_are_deleted`, `whatever_goes_wrong_no_rule_breaks_and_nobody_is_stuck` |
//!
//! # ZooKeeper
//!
//! | fault | limit | tokens rise | normal again | shown by |
//! | --- | --- | --- | --- | --- |
//! | a process that holds dies | kept | yes | 1¼ leases | `the_permits_of_a_dead_process_are_free_when_its_session_ends` |
//! | a process is paused beyond its session, or cut off | kept; what it does in its pause nobody can prevent | yes | at its return | `callers_are_notified_of_the_end_of_a_session`, `a_session_ends_while_a_permit_is_held`, `the_end_of_a_session_loses_all_tickets` |
//! | the leader pauses or dies | kept | yes | an election | `the_leader_is_paused`, `the_leader_is_killed` |
//! | the majority is down, and comes back with its data | kept: nobody gets in | yes | an election | `two_of_three_servers_are_down_and_one_is_restarted` |
//! | it is wiped | at most `limit` more | no: they start anew | one session | `a_wiped_server_loses_all_permits_and_grants_new_ones` |
//! | our nodes are deleted by hand | at most `limit` more | yes | a third of a lease | `rule_04_a_permit_that_was_lost_is_seen_to_be_gone`, `rule_08_tokens_increase_over_a_flush` |
//! | its clock steps | kept | yes | at once | `a_step_of_the_servers_clock_ends_no_session` |
//! | answers get lost, calls run late | kept | yes | at once | `lost_while_connecting`, `lost_while_acquiring`, `lost_while_renewing`, `lost_while_releasing`, `lost_while_queued`, `a_node_whose_creation_was_not_answered_is_adopted`, `a_delayed_call_that_was_given_up_changes_nothing_later`, `a_stuck_connection_is_replaced` |
