//! The work of one subject in one interval.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::clock::{self, micros};

/// The longest time that a histogram holds; longer ones count as this.
const LONGEST_NS: u64 = 120_000_000_000;

/// The work of one subject in one interval.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// How many times a lock was acquired and given back.
    pub(crate) pairs: u64,
    /// From the first call to the end of the last one.
    pub(crate) elapsed: Duration,
    /// Processor time of the client's process in between, its kernel part included.
    pub(crate) cpu: Duration,
    /// Of acquire and release together, in microseconds.
    pub(crate) p50_us: f64,
    /// As `p50_us`.
    pub(crate) p99_us: f64,
    /// As `p50_us`.
    pub(crate) p999_us: f64,
}

impl Sample {
    /// Pairs per second.
    pub(crate) fn rate(&self) -> f64 {
        self.pairs as f64 / self.elapsed.as_secs_f64()
    }

    /// Processor time per pair, in microseconds.
    pub(crate) fn cpu_us_per_pair(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.pairs as f64
    }
}

/// Both clocks at the beginning of a slice.
pub(crate) struct Started {
    now: Duration,
    cpu: Duration,
}

impl Started {
    pub(crate) fn now() -> Self {
        Self { now: clock::now(), cpu: clock::cpu() }
    }

    /// Ends the slice.
    ///
    /// # Errors
    /// If nothing was done: there is nothing to be said about a subject then.
    pub(crate) fn end(self, latencies: &Latencies) -> Result<Sample, String> {
        let (elapsed, cpu) = (clock::now() - self.now, clock::cpu() - self.cpu);
        let pairs = latencies.count();
        if pairs == 0 {
            return Err(format!("nothing was done within {elapsed:.1?}"));
        }
        let histogram = latencies.histogram();
        let at = |percent| micros(histogram.value_at_quantile(percent / 100.0));
        Ok(Sample { pairs, elapsed, cpu, p50_us: at(50.0), p99_us: at(99.0), p999_us: at(99.9) })
    }
}

/// The latencies of one locker, or of all of them. They are only written down while the clock runs;
/// a histogram for each of hundreds of lockers would push everything else out of the caches.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<(u64, u64)>);

impl Latencies {
    pub(crate) fn record(&mut self, latency: Duration) {
        self.record_n(latency, 1);
    }

    /// So many at once took so long.
    pub(crate) fn record_n(&mut self, latency: Duration, count: u64) {
        self.0.push((clock::nanos(latency), count));
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    pub(crate) fn histogram(&self) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3)
            .expect("the bounds and the precision are those the crate allows");
        for &(nanos, count) in &self.0 {
            histogram.saturating_record_n(nanos.max(1), count);
        }
        histogram
    }
}
