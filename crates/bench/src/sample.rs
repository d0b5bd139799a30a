use std::time::Duration;

use hdrhistogram::Histogram;

use crate::clock::{self, micros};

/// The largest value in a histogram. A longer time is recorded as this value.
const LONGEST_NS: u64 = 120_000_000_000;

/// The result of one measurement of one subject.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Number of pairs (an acquire and its release) that were completed.
    pub(crate) pairs: u64,
    /// Time from the first call to the end of the last.
    pub(crate) elapsed: Duration,
    /// User and system CPU time of the client's process.
    pub(crate) cpu: Duration,
    /// Latency of a pair in microseconds: 50th percentile.
    pub(crate) p50_us: f64,
    /// 99th percentile of the latency.
    pub(crate) p99_us: f64,
    /// 99.9th percentile of the latency.
    pub(crate) p999_us: f64,
}

impl Sample {
    pub(crate) fn rate(&self) -> f64 {
        self.pairs as f64 / self.elapsed.as_secs_f64()
    }

    /// CPU time per pair in microseconds.
    pub(crate) fn cpu_us_per_pair(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.pairs as f64
    }
}

/// The readings of the monotonic clock and of the CPU time at the start of a measurement.
pub(crate) struct Started {
    now: Duration,
    cpu: Duration,
}

impl Started {
    pub(crate) fn now() -> Self {
        Self { now: clock::now(), cpu: clock::cpu() }
    }

    /// Ends the measurement in which these latencies were recorded.
    ///
    /// # Errors
    /// If no pair was completed.
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

/// Repeats `call` until the time `until`. Each call carries out `pairs` pairs, which all get the latency of the call.
///
/// # Errors
/// The first error of a call.
pub(crate) fn repeat(
    until: Duration,
    pairs: u64,
    mut call: impl FnMut() -> Result<(), String>,
) -> Result<Latencies, String> {
    let mut latencies = Latencies::default();
    let mut now = clock::now();
    while now < until {
        call()?;
        let done = clock::now();
        latencies.record_n(done - now, pairs);
        now = done;
    }
    Ok(latencies)
}

/// Latencies of the lockers in nanoseconds, each with the number of pairs that had it. Recording only appends to a
/// vector: histograms of hundreds of lockers would evict other data from the CPU caches.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<(u64, u64)>);

impl Latencies {
    pub(crate) fn record(&mut self, latency: Duration) {
        self.record_n(latency, 1);
    }

    /// Records the same latency `count` times.
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
