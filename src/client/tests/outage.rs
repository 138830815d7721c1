//! When failed calls are an outage, and for how long.

use crate::client::outage::OutageDetector;
use crate::error::{Error, ErrorKind};
use std::time::Duration;
use tokio::time::Instant;

const AFTER: Duration = Duration::from_secs(1);

fn error() -> Error {
    Error::new(ErrorKind::Unavailable, "down")
}

#[test]
fn one_lost_call_is_no_outage_and_a_second_outage_is_like_the_first() {
    let (outages, start) = (OutageDetector::new(AFTER), Instant::now());
    let mut at = start;
    for _ in 0..2 {
        assert!(outages.failed(at, at + AFTER / 2, &error()).is_none());
        assert!(outages.outage(at + AFTER / 2).is_none());
        assert!(
            outages
                .failed(at + AFTER / 2, at + AFTER, &error())
                .is_some()
        );
        assert!(outages.outage(at + AFTER).is_some());
        outages.answered(at + AFTER * 2);
        assert!(outages.outage(at + AFTER * 2).is_none());
        at += AFTER * 10;
    }
}

#[test]
fn the_beginning_of_an_outage_is_known_before_and_not_repeated() {
    let (outages, start) = (OutageDetector::new(AFTER), Instant::now());
    let second = start + AFTER / 2;
    assert_eq!(outages.next_outage(second), None);
    outages.failed(start, second, &error());
    assert_eq!(outages.next_outage(second), Some(start + AFTER));
    outages.failed(second, start + AFTER, &error()).unwrap();
    assert_eq!(outages.next_outage(second), None);
}

#[test]
fn a_failure_of_long_ago_refuses_no_caller() {
    let (outages, start) = (OutageDetector::new(AFTER), Instant::now());
    outages.failed(start, start + AFTER, &error());
    assert!(outages.outage(start + AFTER * 2).is_some());
    assert!(outages.outage(start + AFTER * 3).is_none());
}

#[test]
fn pauses_between_calls_and_late_timers_do_not_delay_an_outage() {
    for (after, pause, lasts) in [(50, 120, 0), (50, 120, 25), (1000, 550, 500)] {
        let [after, pause, lasts] = [after, pause, lasts].map(Duration::from_millis);
        let (outages, mut sent) = (OutageDetector::new(after), Instant::now());
        let outage = (0..3).any(|_| {
            let outage = outages.failed(sent, sent + lasts, &error());
            sent += lasts + pause;
            outage.is_some()
        });
        assert!(outage, "{after:?} {pause:?} {lasts:?}");
    }
}

#[test]
fn failures_far_apart_are_no_outage() {
    let (outages, start) = (OutageDetector::new(AFTER), Instant::now());
    let later = start + AFTER * 100;
    assert!(outages.failed(start, start + AFTER / 2, &error()).is_none());
    assert!(outages.failed(later, later + AFTER / 2, &error()).is_none());
}
