//! Reads the values of settings.

use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;
use std::time::Duration;

use quorlock_core::{RestartGuard, TimingOptions};

/// Reads a time such as `250ms`, `10s`, `5m` or `1h 30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = Some(Duration::ZERO).filter(|_| !rest.is_empty());
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        let behind = behind.trim_start();
        let letters = behind.find(|c: char| !c.is_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(letters);
        rest = behind.trim_start();
        let unit = match unit {
            "us" => Some(Duration::from_micros(1)),
            "ms" => Some(Duration::from_millis(1)),
            "s" | "sec" | "secs" | "second" | "seconds" => Some(Duration::from_secs(1)),
            "m" | "min" | "mins" | "minute" | "minutes" => Some(Duration::from_secs(60)),
            "h" | "hr" | "hrs" | "hour" | "hours" => Some(Duration::from_secs(3600)),
            "d" | "day" | "days" => Some(Duration::from_secs(86_400)),
            _ => None,
        };
        let number = number.parse::<u32>().ok();
        let part = unit.zip(number).and_then(|(unit, number)| unit.checked_mul(number));
        total = total.zip(part).and_then(|(total, part)| total.checked_add(part));
        if total.is_none() {
            break;
        }
    }
    total.ok_or_else(|| "a time has a unit and no fraction, as in 250ms, 10s, 5m or 24h".to_owned())
}

/// Reads a yes or no. Any other text is an error, because a typo must not switch a setting off.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("must be 1, true, yes or on; or 0, false, no or off".to_owned()),
    }
}

/// Reads a mode of the restart guard.
pub fn restart_guard(text: &str) -> Result<RestartGuard, String> {
    match text.trim() {
        "strict" => Ok(RestartGuard::Strict),
        "observe" => Ok(RestartGuard::Observe),
        "off" => Ok(RestartGuard::Off),
        _ => Err("must be strict, observe or off".to_owned()),
    }
}

/// Reads a number.
pub fn number<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "this number is too large".to_owned(),
        _ => "must be a number, 0 or larger".to_owned(),
    })
}

/// The ttl of locks without a ttl of their own: the library's default, or `max_ttl` if that is shorter.
pub fn default_ttl(max_ttl: Option<Duration>) -> Duration {
    let usual = TimingOptions::default().ttl;
    max_ttl.map_or(usual, |max_ttl| max_ttl.min(usual))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        let time = |text| duration(text).ok().map(|time| time.as_micros());
        assert_eq!(time("250ms"), Some(250_000));
        assert_eq!(time("0s"), Some(0));
        assert_eq!(time("0"), Some(0));
        assert_eq!(time(" 1h 30m "), Some(5_400_000_000));
        assert_eq!(time("1m30s5us"), Some(90_000_005));
        for wrong in
            ["", "10", "-1s", "1.5s", "s", "10 x", "1s 2", "forever", "5000000000s", "1 h h"]
        {
            let reason = duration(wrong).unwrap_err();
            assert_eq!(
                reason, "a time has a unit and no fraction, as in 250ms, 10s, 5m or 24h",
                "{wrong:?}"
            );
        }
    }
}
