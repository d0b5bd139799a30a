//! Writes lines without waiting for the reader.
//!
//! A pipe that is not read blocks its writer, and the keeper must extend a lock and handle signals. So a thread writes,
//! and lines wait in a queue of bounded size. If the queue is full, the oldest lines are dropped, and the reader gets
//! their number. A non-blocking descriptor would be simpler, but that flag belongs to the open file, which the command
//! shares.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// A descriptor with its queue and its thread. Dropping the sink waits for a moment until all lines are written.
#[derive(Debug)]
pub(super) struct Sink {
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    lines: VecDeque<QueuedLine>,
    bytes: usize,
    /// Number of lines that were dropped since the last report. Transient lines do not count.
    dropped: u64,
    is_writing: bool,
    /// A write has failed, for example because the reader closed the pipe. All further lines are dropped.
    is_broken: bool,
    is_closed: bool,
}

#[derive(Debug)]
struct QueuedLine {
    text: String,
    /// Whether a transient line that is queued right after this one replaces it.
    is_transient: bool,
}

impl Sink {
    /// `dropped` makes the line that reports the number of missing lines.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn new(
        target: impl AsFd + Send + 'static,
        dropped: fn(u64) -> String,
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let writers = Arc::clone(&queue);
        let write = move || writers.write_all(&target, dropped);
        thread::Builder::new().name("output".into()).spawn(write)?;
        Ok(Self { queue })
    }

    /// Queues one or more whole lines. Never blocks.
    pub(super) fn line(&self, text: String) {
        self.queue.push(QueuedLine { text, is_transient: false });
    }

    /// Queues a text that the next one replaces. Never blocks.
    pub(super) fn transient(&self, text: String) {
        self.queue.push(QueuedLine { text, is_transient: true });
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.is_closed = true;
        self.queue.changed.notify_all();
        let is_busy = |state: &mut QueueState| {
            !state.is_broken && (state.is_writing || !state.lines.is_empty())
        };
        drop(self.queue.changed.wait_timeout_while(state, LAST_WORDS, is_busy));
    }
}

impl Queue {
    fn push(&self, line: QueuedLine) {
        let mut state = self.state();
        if state.is_broken {
            return;
        }
        if line.is_transient && state.lines.back().is_some_and(|last| last.is_transient) {
            let replaced = state.lines.pop_back().map_or(0, |last| last.text.len());
            state.bytes -= replaced;
        }
        state.bytes += line.text.len();
        state.lines.push_back(line);
        while state.bytes > BYTES_MAX && state.lines.len() > 1 {
            let Some(oldest) = state.lines.pop_front() else { break };
            state.bytes -= oldest.text.len();
            state.dropped += u64::from(!oldest.is_transient);
        }
        self.changed.notify_all();
    }

    fn write_all(&self, target: &impl AsFd, dropped: fn(u64) -> String) {
        let mut state = self.state();
        loop {
            let text = if state.dropped > 0 {
                dropped(std::mem::take(&mut state.dropped))
            } else if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.text.len();
                line.text
            } else if state.is_closed {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.is_writing = true;
            drop(state);
            let written = write(target, text.as_bytes());
            state = self.state();
            state.is_writing = false;
            if written.is_err() {
                state.is_broken = true;
                state.lines.clear();
                self.changed.notify_all();
                return;
            }
            self.changed.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(target: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(target, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // The program that opened the descriptor made it non-blocking, so this thread waits for the reader here.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(target, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Limit of the queue in bytes, which is enough for the events of some hours of a long-lived lock.
const BYTES_MAX: usize = 64 * 1024;

/// The longest time for which a dropped sink waits until its lines are written.
const LAST_WORDS: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::time::Instant;

    use super::*;

    fn dropped(count: u64) -> String {
        format!("dropped {count}\n")
    }

    fn stalled() -> (BufReader<std::io::PipeReader>, Sink) {
        let (reader, writer) = std::io::pipe().unwrap();
        let sink = Sink::new(writer, dropped).unwrap();
        (BufReader::new(reader), sink)
    }

    #[test]
    fn what_was_not_read_in_time_is_counted_and_the_newest_is_kept() {
        let (reader, sink) = stalled();
        // Pipe and queue together cannot hold all of these lines, so the sink must drop some.
        for number in 0..20_000 {
            sink.line(format!("line {number:020}\n"));
        }
        let mut told = 0;
        let mut expected = 0_u64;
        for line in reader.lines() {
            let line = line.unwrap();
            let (kind, number) = line.split_once(' ').unwrap();
            let number: u64 = number.parse().unwrap();
            if kind == "dropped" {
                told += number;
                expected += number;
            } else {
                assert_eq!(number, expected, "in order, and gaps are reported");
                expected += 1;
            }
            if expected == 20_000 {
                break;
            }
        }
        assert!(told > 0);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a bound on waiting, no validity")]
    fn the_end_waits_for_a_moment_and_not_for_ever() {
        let (mut reader, sink) = stalled();
        sink.line("last words\n".to_owned());
        drop(sink);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "last words\n");

        let (_reader, sink) = stalled();
        sink.line("x".repeat(1 << 20));
        let began = Instant::now();
        drop(sink);
        assert!(began.elapsed() >= LAST_WORDS);
    }

    #[test]
    fn of_what_is_written_over_only_the_newest_waits_and_none_is_counted() {
        let (reader, sink) = stalled();
        sink.line("x".repeat(1 << 20) + "\n");
        while !sink.queue.state().is_writing {
            thread::yield_now();
        }
        for number in 0..100_000 {
            sink.transient(format!("transient {number}\n"));
        }
        sink.line("end\n".to_owned());
        let lines: Vec<String> =
            reader.lines().map(Result::unwrap).take_while(|line| line != "end").collect();
        assert!(lines.len() <= 3, "{}", lines.len());
        assert_eq!(lines.last().unwrap(), "transient 99999");
    }

    #[test]
    fn a_reader_that_has_gone_stops_nothing() {
        let (reader, sink) = stalled();
        drop(reader);
        for _ in 0..100_000 {
            sink.line("nobody hears\n".to_owned());
        }
    }
}
