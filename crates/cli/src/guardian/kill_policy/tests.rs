use super::*;

const DEADLINES: Deadlines = Deadlines { term: at(100), kill: at(200) };
const LONG: Deadlines = Deadlines { term: at(1_000 * STEP_NS), kill: at(2_000 * STEP_NS) };
const ZERO: Ending = Ending::Exited { code: 0 };
const TERMED: Message = time_up(KilledBy::Term, 100);

const fn time_up(by: KilledBy, at_ns: u64) -> Message {
    Message::Killed(Killed { by, why: Why::TimeUp, at_ns })
}

/// A moment on a machine whose wall clock is a million nanoseconds ahead of its boot clock.
const fn at(boot_ns: u64) -> Moment {
    Moment { boot_ns, real_ns: boot_ns + 1_000_000 }
}

#[test]
fn each_signal_is_due_once_and_in_order() {
    let mut kill_policy = KillPolicy::new(DEADLINES);
    assert_eq!(kill_policy.due(at(99)), None);
    assert_eq!(kill_policy.next_due(), at(100));
    assert_eq!(kill_policy.due(at(100)), Some(Signal::TERM));
    assert_eq!(kill_policy.due(at(199)), None);
    assert_eq!(kill_policy.next_due(), at(200));
    assert_eq!(kill_policy.due(at(200)), Some(Signal::KILL));
    assert_eq!(kill_policy.due(at(300)), None);
    assert_eq!(kill_policy.next_due(), Moment::NEVER);
}

#[test]
fn a_sleep_past_both_deadlines_kills_at_once() {
    let mut kill_policy = KillPolicy::new(DEADLINES);
    assert_eq!(kill_policy.due(at(1_000)), Some(Signal::KILL));
    assert_eq!(kill_policy.due(at(1_000)), None);
    let killed = time_up(KilledBy::Kill, 1_000);
    assert_eq!(kill_policy.result(Ending::Signaled { signal: 9 }), killed);
}

#[test]
fn a_wall_clock_that_is_set_ahead_brings_the_deadlines_and_one_set_back_does_not_move_them() {
    let ahead = Moment { real_ns: at(150).real_ns, ..at(10) };
    assert_eq!(KillPolicy::new(DEADLINES).due(ahead), Some(Signal::TERM));
    let far_ahead = Moment { real_ns: at(200).real_ns, ..at(10) };
    assert_eq!(KillPolicy::new(DEADLINES).due(far_ahead), Some(Signal::KILL));
    let back = |boot_ns| Moment { boot_ns, real_ns: 0 };
    let mut kill_policy = KillPolicy::new(DEADLINES);
    assert_eq!(kill_policy.due(back(99)), None);
    assert_eq!(kill_policy.due(back(100)), Some(Signal::TERM));
    assert_eq!(kill_policy.due(back(200)), Some(Signal::KILL));
}

#[test]
fn a_later_extension_does_not_change_why_the_command_was_ended() {
    let stepped = Moment { boot_ns: 10 * STEP_NS, ..at(1_000 * STEP_NS) };
    for (now, why) in [(at(1_000 * STEP_NS), Why::TimeUp), (stepped, Why::ClockJumped)] {
        let mut kill_policy = KillPolicy::new(LONG);
        assert_eq!(kill_policy.due(now), Some(Signal::TERM));
        kill_policy.set(Deadlines { term: at(9_000 * STEP_NS), kill: at(9_500 * STEP_NS) });
        kill_policy.ended(ZERO, now.after(20));
        let killed = Killed { by: KilledBy::Term, why, at_ns: now.boot_ns };
        assert_eq!(kill_policy.result(ZERO), Message::Killed(killed));
    }
}

/// The keeper may notice a wall-clock jump first and send a shorter validity. The result must still name the jump.
#[test]
fn a_shorter_time_that_was_told_hides_no_step_of_the_clock() {
    let boot_ns = 10 * STEP_NS;
    let stepped = Moment { boot_ns, ..at(2_001 * STEP_NS) };
    for (now, why) in [(stepped, Why::ClockJumped), (at(boot_ns), Why::TimeUp)] {
        let mut kill_policy = KillPolicy::new(LONG);
        kill_policy.set(Deadlines { term: now.before(STEP_NS), kill: now.before(1) });
        assert_eq!(kill_policy.due(now), Some(Signal::KILL));
        assert_eq!(kill_policy.revoked, Some((why, boot_ns)));
    }
    let mut kill_policy = KillPolicy::new(LONG);
    kill_policy.terminate(at(5_000));
    assert_eq!(kill_policy.due(stepped), Some(Signal::KILL));
    assert_eq!(kill_policy.revoked, Some((Why::Lost, boot_ns)), "what the keeper knows counts");
}

#[test]
fn a_new_word_moves_both_deadlines_either_way_and_a_sealed_course_takes_none() {
    let mut kill_policy = KillPolicy::new(DEADLINES);
    kill_policy.set(Deadlines { term: at(1_100), kill: at(1_200) });
    assert_eq!(kill_policy.due(at(1_099)), None);
    kill_policy.set(Deadlines { term: at(1_100), kill: at(1_150) });
    kill_policy.keeper_died();
    assert_eq!(kill_policy.due(at(1_099)), Some(Signal::TERM));
    kill_policy.set(Deadlines { term: Moment::NEVER, kill: Moment::NEVER });
    assert_eq!(kill_policy.due(at(1_149)), None);
    assert_eq!(kill_policy.due(at(1_150)), Some(Signal::KILL));
}

#[test]
fn a_loss_asks_now_and_forces_at_the_earlier_of_two_times() {
    for (kill, forced_at) in [(at(50), at(50)), (at(5_000), DEADLINES.kill)] {
        let mut kill_policy = KillPolicy::new(DEADLINES);
        kill_policy.terminate(kill);
        assert_eq!(kill_policy.due(at(10)), Some(Signal::TERM));
        assert_eq!(kill_policy.due(forced_at.before(1)), None);
        assert_eq!(kill_policy.due(forced_at), Some(Signal::KILL));
    }
}

#[test]
fn the_second_term_of_the_user_kills_and_is_not_the_locks_doing() {
    let mut kill_policy = KillPolicy::new(DEADLINES);
    assert_eq!(kill_policy.user_signal(Signal::TERM), Some(Signal::TERM));
    assert_eq!(kill_policy.due(at(1)), None);
    assert_eq!(kill_policy.user_signal(Signal::TERM), None);
    assert_eq!(kill_policy.due(at(2)), Some(Signal::KILL));
    let ending = Ending::Signaled { signal: 9 };
    kill_policy.ended(ending, at(3));
    assert_eq!(kill_policy.result(ending), Message::Ended(ending));
}

#[test]
fn who_is_killed_in_the_guardians_place_is_killed_for_the_lock() {
    let killed = Ending::Signaled { signal: 9 };
    for asked in [false, true] {
        let result = |ending, now| {
            let mut kill_policy = KillPolicy::new(DEADLINES);
            if asked {
                assert_eq!(kill_policy.due(at(100)), Some(Signal::TERM));
            }
            kill_policy.ended(ending, now);
            kill_policy.result(ending)
        };
        let first_told = if asked { 100 } else { 200 };
        assert_eq!(result(killed, at(200)), time_up(KilledBy::Kill, first_told));
        // A SIGKILL before the deadline came from another program. It does not count as a kill that protects the lock.
        let before = if asked { TERMED } else { Message::Ended(killed) };
        assert_eq!(result(killed, at(199)), before);
        if !asked {
            assert_eq!(result(ZERO, at(200)), Message::Ended(ZERO));
        }
    }
}

#[test]
fn leftovers_are_asked_at_once_and_forced_by_the_earlier_of_two_times() {
    let far = Deadlines { term: Moment::NEVER.before(1), kill: Moment::NEVER };
    for (deadlines, forced_at) in [(far, 5 + LEFTOVERS_NS), (DEADLINES, 200)] {
        let mut kill_policy = KillPolicy::new(deadlines);
        kill_policy.ended(ZERO, at(5));
        assert_eq!(kill_policy.due(at(5)), Some(Signal::TERM));
        assert_eq!(kill_policy.next_due().boot_ns, forced_at);
        assert_eq!(kill_policy.due(at(forced_at - 1)), None);
        assert_eq!(kill_policy.due(at(forced_at)), Some(Signal::KILL));
        assert_eq!(kill_policy.result(ZERO), Message::Ended(ZERO));
    }
}

#[test]
fn what_would_end_at_once_is_not_started() {
    assert!(!KillPolicy::new(DEADLINES).too_late(at(99)));
    assert!(KillPolicy::new(DEADLINES).too_late(at(100)));
    let inverted = Deadlines { term: at(300), kill: at(200) };
    assert!(KillPolicy::new(inverted).too_late(at(200)));
}

/// A lock of three votes with a quorum of two, on a machine with a wall clock that is set at random. Votes are renewed
/// and lost, time passes, and the policy gets each change. SIGKILL is always due before the lock ends by either clock.
#[test]
fn the_kill_is_never_later_than_the_validity_whatever_becomes_of_that() {
    let mut random = Moment::now().real_ns;
    println!("seed {random}");
    let mut draw = move |below: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut shrunk, mut ended_by_boot, mut ended_by_real) = (0, 0, 0);
    for _ in 0..2_000 {
        let mut now = Moment { boot_ns: 1_000_000, real_ns: 2_000_000 };
        let mut votes = [Some(now), Some(now), (draw(2) == 0).then_some(now)];
        let mut told = deadlines(now, &votes);
        let mut kill_policy = KillPolicy::new(told);
        for _ in 0..200 {
            let action = draw(10);
            match action {
                0..=4 => now = now.after(draw(TERM / 4)),
                5 | 6 => votes[draw(3) as usize] = Some(now),
                7 => votes[draw(3) as usize] = None,
                8 => now.real_ns += draw(TERM),
                _ => now.real_ns -= draw(TERM).min(now.real_ns),
            }
            if left(now, &votes) == 0 {
                // If the loss of a vote (action 7) ends the lock, SIGKILL need not be due: the keeper ends the command.
                let proved = action == 7;
                assert!(
                    proved || kill_policy.kill_at().has_come(now),
                    "{votes:?} {told:?} {now:?}"
                );
                ended_by_boot += u32::from(!proved && told.kill.boot_ns <= now.boot_ns);
                ended_by_real += u32::from(!proved && told.kill.boot_ns > now.boot_ns);
                break;
            }
            let changed = deadlines(now, &votes);
            shrunk += u32::from(changed.kill.boot_ns < told.kill.boot_ns);
            told = changed;
            kill_policy.set(told);
            assert!(!kill_policy.kill_at().after(KILL).has_come(now), "nor is it told as past");
        }
    }
    assert!(shrunk > 100 && ended_by_boot > 100 && ended_by_real > 100);
}

const TERM: u64 = 10_000;
const KILL: u64 = 500;

/// The remaining validity. The quorum is two, so this is the remaining time of the second youngest vote.
fn left(now: Moment, votes: &[Option<Moment>; 3]) -> u64 {
    let age = |vote: &Moment| {
        let boot = now.boot_ns.saturating_sub(vote.boot_ns);
        boot.max(now.real_ns.saturating_sub(vote.real_ns))
    };
    let mut ages: Vec<u64> = votes.iter().flatten().map(age).collect();
    ages.sort_unstable();
    ages.get(1).map_or(0, |age| TERM.saturating_sub(*age))
}

fn deadlines(now: Moment, votes: &[Option<Moment>; 3]) -> Deadlines {
    Deadlines::before(now.after(left(now, votes)), 2 * KILL, KILL)
}
