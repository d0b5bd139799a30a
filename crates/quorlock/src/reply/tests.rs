use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::thread;

use super::*;

/// A reply that counts its drops.
struct Told(Arc<AtomicUsize>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn pair<T>() -> (Sender<Reply<T>, T>, Receiver<Reply<T>, T>) {
    sides(&Arc::new(Reply::new(std::process::id())), |reply| reply)
}

/// Counts how often it was woken.
#[derive(Default)]
pub(crate) struct Woken(pub(crate) AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll<C, T>(receiver: &mut Receiver<C, T>, woken: &Arc<Woken>) -> Poll<Option<T>> {
    Pin::new(receiver).poll(&mut Context::from_waker(&woken.clone().into()))
}

#[test]
fn what_is_told_is_heard_once_and_wakes_who_waited_last() {
    let (first, last) = (Arc::<Woken>::default(), Arc::<Woken>::default());
    let (sender, mut receiver) = pair();
    assert_eq!(poll(&mut receiver, &first), Poll::Pending);
    assert_eq!(poll(&mut receiver, &last), Poll::Pending);
    assert_eq!(Arc::strong_count(&first), 1, "who waits no more is forgotten");
    assert_eq!(sender.send(7), None);
    assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (0, 1));
    assert_eq!(poll(&mut receiver, &last), Poll::Ready(Some(7)));
    assert_eq!(poll(&mut receiver, &last), Poll::Ready(None));
}

#[test]
fn who_waits_hears_that_nothing_will_be_told() {
    let woken = Arc::<Woken>::default();
    let (sender, mut receiver) = pair::<u32>();
    assert_eq!(poll(&mut receiver, &woken), Poll::Pending);
    drop(sender);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(poll(&mut receiver, &woken), Poll::Ready(None));
}

#[test]
fn what_nobody_waits_for_comes_back_and_what_nobody_hears_is_dropped() {
    let drops = Arc::<AtomicUsize>::default();
    let (sender, receiver) = pair();
    drop(receiver);
    let untaken = sender.send(Told(drops.clone()));
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    drop(untaken.expect("it comes back"));
    assert_eq!(drops.load(Ordering::Relaxed), 1);

    let (sender, receiver) = pair();
    assert!(sender.send(Told(drops.clone())).is_none());
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    drop(receiver);
    assert_eq!(drops.load(Ordering::Relaxed), 2);
}

/// A guard in a reply points to the memory that the reply is in. This circle ends when the receiver is dropped.
#[test]
fn a_reply_may_keep_its_own_place_alive() {
    struct Ring(Reply<Arc<Ring>>);
    for is_heard in [true, false] {
        let ring = Arc::new(Ring(Reply::new(std::process::id())));
        let (sender, mut receiver) = sides(&ring, |ring| &ring.0);
        assert!(sender.send(ring.clone()).is_none());
        if is_heard {
            assert!(poll(&mut receiver, &Arc::default()).is_ready());
        }
        drop(receiver);
        assert_eq!(Arc::strong_count(&ring), 1);
    }
}

/// However telling meets leaving, what is told is heard, or dropped by one of the two sides.
#[test]
fn nothing_is_lost_between_two_threads() {
    let drops = Arc::<AtomicUsize>::default();
    for round in 0..1000 {
        let (sender, mut receiver) = pair();
        let told = Told(drops.clone());
        let tells = thread::spawn(move || drop(sender.send(told)));
        if round % 2 == 0 {
            let _ = poll(&mut receiver, &Arc::default());
        }
        drop(receiver);
        tells.join().unwrap();
        assert_eq!(drops.load(Ordering::Relaxed), round + 1);
    }
}

/// As with tokio's own channels.
#[tokio::test]
async fn who_is_told_at_once_time_and_again_lets_others_have_their_turn() {
    let other = tokio::spawn(async {});
    for _ in 0..1000 {
        let (sender, receiver) = pair();
        assert!(sender.send(()).is_none());
        assert_eq!(receiver.await, Some(()));
    }
    assert!(other.is_finished());
}

/// A process is forked while the other side has the lock. In the child the lock is never released.
#[test]
fn in_a_fork_nobody_waits_for_the_other_side() {
    let place = Arc::new(Reply::<u32>::new(std::process::id() + 1));
    let (sender, mut receiver) = sides(&place, |place| place);
    let locked = place.state.lock();
    assert_eq!(poll(&mut receiver, &Arc::default()), Poll::Ready(None));
    assert_eq!(sender.send(7), Some(7));
    let (sender, receiver) = sides(&place, |place| place);
    drop((sender, receiver, locked));
}
