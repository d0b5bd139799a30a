//! A worker process: two clients with a runtime and two callers each. The callers take locks, rely on them, and
//! release, detach or forget them. A worker reports each action at once, because a fault may kill or stop it.

mod leases;

use std::io::{self, BufRead as _, Write as _};
use std::process;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use quorlock::{
    AcquireError, Client, Guard, LeaseError, LockOptions, LossCause, Mode, Resources, RestartGuard,
};
use quorlock_sim::Random;
use quorlock_sim::time::{MS, Time};
#[cfg(target_os = "linux")]
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::clock::{nanos, now};
use crate::ledger::UNTRUSTED;
use crate::protocol::{
    CALLERS, CLIENTS, ControllerMessage, Grant, Job, Operation, RESOURCES, WorkerMessage, is_fenced,
};
use crate::said;

/// A shutdown retries failed releases for at most this time. All keys expire within it, and an expired key needs no
/// release. So at the end, a client must owe no release.
const SHUTDOWN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Chaos,
    Calm,
    Over,
}

pub(crate) fn main(job: &str) -> Result<(), String> {
    let job: Job = serde_json::from_str(job)
        .map_err(|_| "a worker is started by quorlock-chaos itself, not by hand".to_owned())?;
    // The kernel kills the worker when its parent dies, because a stopped worker could not notice that itself. If the
    // parent has already ended, the end of the worker's input ends the worker too.
    #[cfg(target_os = "linux")]
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(said)?;
    let (tell_phase, phase) = watch::channel(Phase::Chaos);
    let (inboxes, answers): (Vec<_>, Vec<_>) =
        (0..CLIENTS * CALLERS).map(|_| mpsc::unbounded_channel()).unzip();
    let mut answers = answers.into_iter();
    let threads: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let answers: Vec<_> = answers.by_ref().take(CALLERS).collect();
            let (job, phase) = (job.clone(), phase.clone());
            thread::spawn(move || run_client(client, &job, answers, &phase))
        })
        .collect();
    thread::spawn(move || listen(&inboxes, &tell_phase));
    for thread in threads {
        thread.join().map_err(|_| "a client panicked".to_owned())??;
    }
    Ok(())
}

/// Reads the program's messages. If the input ends, the program has ended, so the worker ends too.
fn listen(inboxes: &[mpsc::UnboundedSender<ControllerMessage>], phase: &watch::Sender<Phase>) {
    for line in io::stdin().lock().lines() {
        let message = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        let Some((caller, message)): Option<(usize, _)> = message else { break };
        match message {
            ControllerMessage::Calm => phase.send_modify(|phase| *phase = Phase::Calm.max(*phase)),
            ControllerMessage::Stop => drop(phase.send_replace(Phase::Over)),
            answer => {
                let inbox = inboxes.get(caller);
                // A caller that has ended needs no answer.
                let _ = inbox.map(|inbox| inbox.send(answer));
            }
        }
    }
    process::exit(1);
}

fn say(caller: usize, said: &WorkerMessage) {
    static OUT: Mutex<()> = Mutex::new(());
    let _one_at_a_time = OUT.lock().unwrap_or_else(PoisonError::into_inner);
    let line = serde_json::to_string(&(caller, said)).map(|line| line + "\n").unwrap_or_default();
    // A message is a single write of less than a page, so a killed worker has sent either all of it or nothing.
    if io::stdout().write_all(line.as_bytes()).is_err() {
        process::exit(1);
    }
}

fn run_client(
    number: usize,
    job: &Job,
    answers: Vec<mpsc::UnboundedReceiver<ControllerMessage>>,
    phase: &watch::Receiver<Phase>,
) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(said)?;
    runtime.block_on(async {
        let client = build(number, job).map_err(said)?;
        let callers = answers.into_iter().enumerate().map(|(place, answers)| {
            let caller = number * CALLERS + place;
            let caller = Caller {
                number: caller,
                client: client.clone(),
                max_ttl: job.max_ttl,
                waits: job.waits,
                random: Random::new(job.seed, caller as u64),
                answers,
                phase: phase.clone(),
            };
            tokio::spawn(caller.work())
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.map_err(|panic| panic.to_string())?;
        }
        let owed = client.shutdown(SHUTDOWN).await.err().map_or(0, |error| error.owed.max(1));
        say(number * CALLERS, &WorkerMessage::Closed { owed });
        Ok(())
    })
}

fn build(number: usize, job: &Job) -> Result<Client, quorlock::BuildError> {
    let max_ttl = nanos(job.max_ttl);
    let guard = if job.guarded { RestartGuard::Strict } else { RestartGuard::Off };
    let builder = Client::builder().nodes(&job.urls).quorum(job.quorum).restart_guard(guard);
    let builder = builder.options(LockOptions::new().ttl(max_ttl)).max_ttl(max_ttl);
    let builder = match job.exact {
        true => builder
            .options(LockOptions::new().margin(Duration::ZERO).drift(0, Duration::from_millis(2))),
        false => builder,
    };
    // The first client uses its callers' runtime, the second a thread of its own.
    if number == 0 { builder.build() } else { builder.own_thread(true).build() }
}

struct Caller {
    number: usize,
    client: Client,
    max_ttl: Time,
    waits: bool,
    random: Random,
    answers: mpsc::UnboundedReceiver<ControllerMessage>,
    phase: watch::Receiver<Phase>,
}

impl Caller {
    async fn work(mut self) {
        while *self.phase.borrow() != Phase::Over {
            match self.random.below(100) {
                0..=19 => self.take().await,
                20..=59 if !self.is_calm() => self.use_lease().await,
                _ => self.acquire().await,
            }
            let rest = self.random.between(0, 20 * MS);
            sleep(nanos(rest)).await;
        }
    }

    fn say(&self, said: &WorkerMessage) {
        say(self.number, said);
    }

    fn is_calm(&self) -> bool {
        *self.phase.borrow() != Phase::Chaos
    }

    /// Draws the resources of the next call, mostly one, and whether the caller is a reader.
    fn wish(&mut self) -> (Vec<usize>, bool) {
        let first = self.random.index(RESOURCES.len());
        let mut resources = vec![first];
        if self.random.percent(20) {
            let all = 0..RESOURCES.len();
            let sort: Vec<_> = all.filter(|it| is_fenced(*it) == is_fenced(first)).collect();
            let count = 2 + self.random.index(sort.len() - 1);
            // The resources are in random order, because a caller may name them in any order.
            while resources.len() < count {
                let other = self.random.pick(&sort);
                if !resources.contains(&other) {
                    resources.push(other);
                }
            }
        }
        let is_reader = !is_fenced(first) && self.random.percent(30);
        (resources, is_reader)
    }

    async fn acquire(&mut self) {
        let (resources, is_reader) = self.wish();
        let ttl = self.random.between(self.max_ttl / 2, self.max_ttl);
        let automatic = self.random.percent(70);
        let wait = self.random.between(50 * MS, 3000 * MS);
        let names: Vec<&str> = resources.iter().map(|place| RESOURCES[*place]).collect();
        let names: Resources = match names[..] {
            [name] => name.into(),
            _ => names.into(),
        };
        let wait = if self.random.percent(15) { 0 } else { wait };
        let options =
            LockOptions::new().wait(self.wait(wait)).ttl(nanos(ttl)).auto_extend(automatic);
        let (client, is_fenced) = (self.client.clone(), is_fenced(resources[0]));
        let call = async move {
            if is_fenced {
                let guard = client.acquire_fenced(names).options(options).await?;
                let fencing_token = guard.fencing_token();
                return Ok((guard.into(), Some(fencing_token)));
            }
            let call = match is_reader {
                true => client.acquire_shared(names),
                false => client.acquire(names),
            };
            call.options(options).await.map(|guard| (guard, None))
        };
        let asked = self.calls(Operation::Acquire, None);
        self.hold(call, ttl, Grant { resources, asked, is_reader, ..Grant::default() }).await;
    }

    /// The longest time for which a call waits for its lock.
    fn wait(&self, drawn: Time) -> Duration {
        if self.waits { nanos(drawn) } else { Duration::ZERO }
    }

    fn calls(&self, operation: Operation, lease: Option<usize>) -> Time {
        let at = now();
        self.say(&WorkerMessage::Calls { operation, lease, at });
        at
    }

    /// Awaits a call for a lock, which the caller sometimes cancels. Reports why there is no lock.
    async fn granted<L>(
        &mut self,
        call: impl Future<Output = Result<L, AcquireError>>,
    ) -> Option<L> {
        match self.patiently(call).await {
            Some(Ok(lock)) => return Some(lock),
            Some(Err(error)) => match why(&error) {
                Some(why) => self.refused(why),
                None => self.odd(format!("is refused: {error}")),
            },
            None => self.refused("has cancelled its call"),
        }
        None
    }

    /// Awaits the future until the end of the round. Sometimes the caller drops the future earlier.
    async fn patiently<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let patience = self.patience(15, 50 * MS);
        let mut phase = self.phase.clone();
        tokio::select! {
            done = timeout(patience, future) => done.ok(),
            _ = phase.wait_for(|phase| *phase == Phase::Over) => None,
        }
    }

    /// The time after which the caller drops a future: mostly never, and in `percent` cases of 100 before `most`.
    fn patience(&mut self, percent: u64, most: Time) -> Duration {
        match self.random.percent(percent) {
            true => nanos(self.random.between(0, most)),
            false => Duration::MAX,
        }
    }

    fn refused(&self, why: &str) {
        self.say(&WorkerMessage::Refused { why: why.to_owned() });
    }

    fn odd(&self, what: String) {
        self.say(&WorkerMessage::Odd { what });
    }

    /// Awaits a call for a lock, uses the lock, and then releases or detaches it in one of several ways.
    async fn hold(
        &mut self,
        call: impl Future<Output = Result<(Guard, Option<u64>), AcquireError>>,
        ttl: Time,
        grant: Grant,
    ) {
        let Some((mut guard, fence)) = self.granted(call).await else { return };
        let mut relied = Relied::begin(|| guard.remaining());
        let Relied { at, until } = relied;
        let is_reader = grant.is_reader;
        if (guard.mode() == Mode::Shared) != is_reader {
            self.odd(format!("is {:?}, which is not the mode of its call", guard.mode()));
        }
        self.say(&WorkerMessage::Holds { grant: Grant { at, until, fence, ..grant } });
        let numbers = self.read().await;
        let long = !self.is_calm() && self.random.percent(40);
        let most = if long { 2 * ttl } else { 20 * MS };
        let end = now() + self.random.between(0, most);
        if long && fence.is_some() && self.random.coin() {
            // The caller acts like a paused process: it does not notice the loss of its lock, and writes.
            self.be_away(end).await;
        } else {
            self.stay(&guard, &mut relied, end).await;
        }
        if long && guard.is_valid() && self.random.percent(20) {
            // The result is ignored, because the guard's validity shows whether the extension succeeded.
            let _ = guard.extend().await;
            self.stay(&guard, &mut relied, now() + ttl / 4).await;
        }
        relied.look(|| guard.remaining());
        if is_reader {
            self.compare(&guard, &relied, numbers).await;
        } else {
            let reads_on = guard.is_valid() && self.random.percent(15);
            let known = match reads_on && self.random.coin() {
                true => numbers,
                false => self.write((guard.is_valid(), fence), &relied, numbers).await,
            };
            if reads_on {
                self.say(&WorkerMessage::Downgrades { at: now() });
                guard = guard.downgrade();
                self.read_on(&guard, &mut relied, known, ttl).await;
            }
        }
        let cause = guard.loss_cause();
        let until = relied.end(cause);
        if cause.is_none() && !self.is_calm() && self.random.percent(60) {
            return self.detach(guard.detach(), until).await;
        }
        let lost = cause.map(|cause| format!("{cause:?}"));
        self.say(&WorkerMessage::Held { until, lost });
        match self.random.below(3) {
            0 => drop(guard),
            // The future is dropped without a poll, because the call of `release` has already queued the release.
            1 => drop(guard.release()),
            // The result is ignored, because a later check finds the keys of a failed release.
            _ => drop(guard.release().await),
        }
    }

    /// Reads the numbers of the caller's resources.
    async fn read(&mut self) -> Option<Vec<u64>> {
        match self.ask(WorkerMessage::Reads).await? {
            ControllerMessage::Numbers { numbers, .. } => numbers,
            _ => None,
        }
    }

    /// Adds one to each number. Returns the new numbers if they were written.
    async fn write(
        &mut self,
        (is_valid, fence): (bool, Option<u64>),
        relied: &Relied,
        numbers: Option<Vec<u64>>,
    ) -> Option<Vec<u64>> {
        // Without a fencing token, the caller sometimes writes without a check of its lock, so that the witness must
        // refuse a late write. With a fencing token it never checks its lock, because the store checks the token.
        let careless = fence.is_some() || self.random.percent(20);
        let read = numbers.filter(|_| careless || is_valid)?;
        let larger = read.iter().map(|number| number + 1).collect();
        let until = relied.until;
        let message = self.ask(WorkerMessage::Writes { read, until }).await;
        matches!(message, Some(ControllerMessage::Written { written: true, .. })).then_some(larger)
    }

    /// Continues as a reader. The numbers that the reader knows must not change until the release.
    async fn read_on(
        &mut self,
        guard: &Guard,
        relied: &mut Relied,
        known: Option<Vec<u64>>,
        ttl: Time,
    ) {
        // Sometimes the caller does not wait until the downgrade is confirmed. It must be a reader nevertheless.
        let patience = self.patience(20, 2 * MS);
        let downgraded = timeout(patience, guard.extend()).await;
        if guard.mode() != Mode::Shared {
            self.odd("is a writer after its downgrade".to_owned());
        }
        let confirmed = matches!(downgraded, Ok(Ok(_)));
        self.say(&WorkerMessage::Downgraded { confirmed });
        let most = if self.is_calm() { 20 * MS } else { ttl };
        let end = now() + self.random.between(0, most);
        self.stay(guard, relied, end).await;
        relied.look(|| guard.remaining());
        self.compare(guard, relied, known).await;
    }

    async fn compare(&mut self, guard: &Guard, relied: &Relied, known: Option<Vec<u64>>) {
        if let Some(read) = known {
            let until = relied.trusted(guard.loss_cause());
            // Waits for the reply, so that the lock is held during the comparison.
            self.ask(WorkerMessage::Compares { read, until }).await;
        }
    }

    /// Holds the lock until `end`, unless it is lost or the round ends.
    async fn stay(&mut self, guard: &Guard, relied: &mut Relied, end: Time) {
        let mut phase = self.phase.clone();
        loop {
            let left = (end - now()).max(0);
            tokio::select! {
                _ = guard.lost() => return,
                _ = phase.wait_for(|phase| *phase == Phase::Over) => return,
                () = sleep(nanos(left.min(25 * MS))) => {}
            }
            if now() >= end {
                return;
            }
            relied.look(|| guard.remaining());
            self.say(&WorkerMessage::StillHolds { until: relied.until });
        }
    }

    /// Ignores the lock until `end`, unless the round ends.
    async fn be_away(&self, end: Time) {
        let mut phase = self.phase.clone();
        tokio::select! {
            _ = phase.wait_for(|phase| *phase == Phase::Over) => {}
            () = sleep(nanos((end - now()).max(0))) => {}
        }
    }

    async fn ask(&mut self, what: WorkerMessage) -> Option<ControllerMessage> {
        self.say(&what);
        self.answers.recv().await
    }
}

/// The times that decide how long a holder may rely on its lock.
struct Relied {
    /// The time of the last look at the guard that found it valid.
    at: Time,
    /// The latest end of the validity that a look at the guard has found.
    until: Time,
}

impl Relied {
    fn begin(remaining: impl FnOnce() -> Duration) -> Self {
        let mut relied = Self { at: now(), until: 0 };
        relied.look(remaining);
        relied
    }

    fn look(&mut self, remaining: impl FnOnce() -> Duration) {
        // Reads the clock first, so that the computed end is not too late.
        let before = now();
        let remaining = Time::try_from(remaining().as_nanos()).unwrap_or(0);
        if remaining > 0 {
            self.at = before;
            self.until = self.until.max(before + remaining);
        }
    }

    /// The time until which the holder may trust that no other client has had the lock.
    fn trusted(&self, cause: Option<LossCause>) -> Time {
        match cause {
            None | Some(LossCause::Expired | LossCause::HoldLimit) => self.until,
            // The time of any other loss is unknown, so the holder may trust its lock only until the last check.
            Some(_) => self.at,
        }
    }

    /// The end of the hold, computed right before the release: now, or earlier if the lock was lost.
    fn end(&self, cause: Option<LossCause>) -> Time {
        let before = now();
        match cause {
            None => before,
            Some(_) => self.trusted(cause).min(before),
        }
    }
}

/// The reason of a refusal; `None` if the library must not refuse such a call.
fn why(error: &AcquireError) -> Option<&'static str> {
    match error {
        AcquireError::Contended(_) => Some("refused: contended"),
        AcquireError::TooSlow(_) => Some("refused: too slow"),
        AcquireError::NodesUntrusted(_) => Some(UNTRUSTED),
        AcquireError::LeaseOver(_) | AcquireError::Lease(LeaseError::Over { .. }) => {
            Some("refused: the lease is over")
        }
        AcquireError::Invalid(_) | AcquireError::Lease(_) => None,
        _ => Some("refused: no quorum"),
    }
}
