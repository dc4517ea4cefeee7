//! Policies that take long: they hold up nobody else, and never run on all cores at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pgsandbox::model::Code;
use pgsandbox::policy::wasm::{Host, HostSettings};
use pgsandbox::policy::{FUEL_MAX, Set, TIMEOUT_MS_MAX};

use super::guest::{Guest, context};
use super::{host, load};

#[test]
fn a_full_queue_is_busy() {
    let host = Host::new(&HostSettings { slots: 1, slot_wait_ms: 1, cache_directory: None }).unwrap();
    let mut slow = Guest::from_file("slow").spec();
    slow.limits.fuel = FUEL_MAX;
    slow.limits.timeout_ms = 2000;
    let slow = Set::load(&host, &[slow], 1).unwrap();
    let quick = Set::load(&host, &[Guest::new("quick").spec()], 2).unwrap();
    let ask = |set: &Set| set.decide(&context(), &[]).refusal.map(|refusal| refusal.code);
    std::thread::scope(|scope| {
        // Each of the two may find the slot taken by the other; the slow one tries until it has had it.
        let slow = scope.spawn(|| {
            let busy = (0..1000).take_while(|_| ask(&slow) != Some(Code::PolicyTimeout)).count();
            (busy < 1000, busy > 0)
        });
        let asked: Vec<_> = std::iter::repeat_with(|| ask(&quick)).take_while(|_| !slow.is_finished()).collect();
        let (ran, waited) = slow.join().unwrap();
        assert!(ran, "the slow policy never had the slot");
        assert!(waited || asked.contains(&Some(Code::Busy)), "two evaluations ran beside one slot");
        assert!(asked.iter().all(|code| [None, Some(Code::Busy)].contains(code)), "{asked:?}");
    });
    assert_eq!(quick.decide(&context(), &[]).refusal, None);
}

/// The one worker of this runtime is where a policy loops; a request that comes meanwhile must be served before it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_policy_that_loops_holds_up_no_other_request() {
    let host = host();
    let mut slow = Guest::from_file("slow").spec();
    slow.limits.fuel = FUEL_MAX;
    slow.limits.timeout_ms = TIMEOUT_MS_MAX;
    let slow = Arc::new(Set::load(&host, &[slow], 1).unwrap());
    let quick = Arc::new(Set::load(&host, &[Guest::new("quick").spec()], 2).unwrap());
    // On a busy machine the other thread may come too late; a worker that is held up never lets it come in time.
    for _ in 0..20 {
        let ended = Arc::new(AtomicBool::new(false));
        let looping = tokio::spawn({
            let (slow, ended) = (slow.clone(), ended.clone());
            async move {
                let refusal = slow.decide(&context(), &[]).refusal.map(|refusal| refusal.code);
                ended.store(true, Ordering::SeqCst);
                refusal
            }
        });
        let served = tokio::spawn({
            let (quick, ended) = (quick.clone(), ended.clone());
            async move { (quick.decide(&context(), &[]).refusal.is_none(), !ended.load(Ordering::SeqCst)) }
        });
        let (passed, in_time) = served.await.unwrap();
        assert_eq!((passed, looping.await.unwrap()), (true, Some(Code::PolicyTimeout)));
        if in_time {
            return;
        }
    }
    panic!("whoever came while the policy looped was served after it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_that_loop_at_once_end_one_after_the_other_or_are_busy() {
    let host = host();
    let mut slow = Guest::from_file("slow").spec();
    slow.limits.fuel = FUEL_MAX;
    let slow = Arc::new(Set::load(&host, &[slow], 1).unwrap());
    let calls = (0..16).map(|_| {
        let slow = slow.clone();
        tokio::spawn(async move { slow.decide(&context(), &[]).refusal.map(|refusal| refusal.code) })
    });
    let mut said = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        said.push(call.await.unwrap());
    }
    assert!(said.contains(&Some(Code::PolicyTimeout)), "{said:?}");
    assert!(said.iter().all(|code| [Some(Code::PolicyTimeout), Some(Code::Busy)].contains(code)), "{said:?}");
}

/// What needs more than a first attempt gets all of its budget, and the same answer and fuel as ever.
#[test]
fn what_takes_longer_than_a_first_attempt_is_answered_all_the_same() {
    let mut guest = Guest::new("p");
    guest.functions = "(func $evaluate (param $request i32) (result i32) (local $n i32)
      (loop $again
        (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $again (i32.lt_u (local.get $n) (i32.const 200000))))
      (global.get $decision))"
        .to_owned();
    let set = load(&[guest.spec()]).unwrap();
    let decisions = [set.decide(&context(), &[]), set.decide(&context(), &[])];
    assert_eq!(decisions[0].refusal, None);
    assert!(decisions[0].reports[0].fuel > pgsandbox::policy::wasm::BRIEF_FUEL, "{}", decisions[0].reports[0].fuel);
    assert_eq!(decisions[0].reports[0].fuel, decisions[1].reports[0].fuel);
}
