//! Lists of nodes as one text.

use crate::error::Reason;
use crate::node::{NodeConfig, NodeConfigError};

/// Reads a list of nodes that commas separate.
pub fn nodes(text: &str) -> Result<Vec<NodeConfig>, Reason> {
    nodes_by(text, NodeConfig::parse)
}

/// Reads a list of nodes of an old list, which commas separate. A node may have the name that a URL without a name gives
/// it, such as `10.0.0.1:6379`, beside another URL.
pub fn old_nodes(text: &str) -> Result<Vec<NodeConfig>, Reason> {
    nodes_by(text, NodeConfig::parse_old)
}

fn nodes_by(
    text: &str,
    parse: fn(&str) -> Result<NodeConfig, NodeConfigError>,
) -> Result<Vec<NodeConfig>, Reason> {
    const COMMA: &str = "a comma separates nodes; write a comma in a password as %2C";
    let mut parts: Vec<String> = Vec::new();
    for part in text.split(',') {
        match parts.last_mut() {
            // The comma is inside a URL of Sentinels. The parts are joined, so the error names the whole URL.
            Some(url) if url.contains("+sentinel://") && !part.contains("://") => {
                *url += &format!(",{part}");
            }
            _ => parts.push(part.to_owned()),
        }
    }
    for (before, part) in parts.iter().zip(&parts[1..]) {
        // No node begins like this part, so the part is the rest of a password with a comma.
        if !part.contains("://") && (part.contains('@') || before.contains("pass=")) {
            return Err(COMMA.into());
        }
    }
    let read = |part: &String| match parse(part) {
        Ok(_) if part.contains(',') => Err(COMMA.into()),
        Err(_) if part.trim().is_empty() => Err("there is no node before or behind a comma".into()),
        Err(error) if parts.len() > 1 && text.contains('@') => {
            Err(Reason::new(format!("{error} ({COMMA})"), error))
        }
        read => read.map_err(|error| Reason::new(error.to_string(), error)),
    };
    parts.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_password_or_between_sentinels_is_named() {
        let read = |text| nodes(text).map(|nodes| nodes.len()).map_err(|reason| reason.to_string());
        assert_eq!(read("a=redis://h, b=redis://h2:1"), Ok(2));
        assert_eq!(read("redis://u:p%2Cw@h,redis://:x@h2"), Ok(2));
        assert_eq!(read("redis://h?replicas=1,h2"), Ok(2));
        for text in [
            "redis://:pa,hunter2@h",
            "redis://:hunter2,@h",
            "redis://h,u:hunter2@h2",
            "redis://h,redis://:hunter2,7@h2,redis://h3",
            "redis+unix:///r.sock?user=u&pass=a,hunter2",
            "redis://:1,hunter2://@h",
            "redis+sentinel://:pa,hunter2@h/locks?replicas=1",
            "redis+sentinel://h/locks?replicas=1&sentinel-password=pa,hunter2",
        ] {
            let reason = read(text).unwrap_err();
            assert!(reason.contains("write a comma in a password as %2C"), "{text}: {reason}");
            assert!(!reason.contains("hunter2"), "{reason}");
        }
        assert_eq!(read("redis://h,"), Err("there is no node before or behind a comma".to_owned()));
        for (text, url) in [
            ("redis+sentinel://h:1,g:1/locks?replicas=1", "h:1,g:1/locks"),
            ("a=redis+sentinel://h/locks?sentinel=g,f&replicas=1", "h/locks"),
            ("redis+sentinel://:hunter2@h,g/locks?replicas=1", "***"),
        ] {
            let reason = read(text).unwrap_err();
            let start = format!(
                "node URL \"redis+sentinel://{url}\": the text behind the comma is no node;"
            );
            assert!(reason.starts_with(&start) && !reason.contains("%2C"), "{reason}");
        }
    }
}
