//! Commands that fix what is found.

/// How a person talks to that server.
pub(super) fn redis_cli(address: &str, command: &str) -> String {
    match address.rsplit_once(':') {
        Some((host, port)) if !address.starts_with('/') => {
            let host = host.trim_matches(['[', ']']);
            format!("redis-cli -h {host} -p {port} {command}")
        }
        _ => format!("redis-cli -s {address} {command}"),
    }
}

/// Replicas whose priority is 0 are promoted by no Sentinel.
pub(super) fn unpromoted(replicas: &[String]) -> String {
    let command = "CONFIG SET replica-priority 0";
    if replicas.is_empty() {
        return redis_cli("REPLICA:PORT", command);
    }
    let all = replicas.iter().map(|replica| {
        format!("{} && {}", redis_cli(replica, command), redis_cli(replica, "CONFIG REWRITE"))
    });
    all.collect::<Vec<_>>().join(" && ")
}
