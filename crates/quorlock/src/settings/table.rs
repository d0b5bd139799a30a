//! The table of the settings.

use std::sync::Arc;

use quorlock_core::TTL_MIN;
use quorlock_core::display::exactly;

use super::parse::{boolean, default_ttl, duration, number, restart_guard};
use super::{Class, Form, Origin, Place, Set, Setting, nodes};
use crate::builder::ClientBuilder;
use crate::error::Reason;
use crate::node::secret::{PasswordFile, SecretFile};
use crate::node::{Provider, Tls};
use crate::options::LockOptions;

/// All settings, in the order in which they are applied and in which help texts show them.
pub const SETTINGS: &[Setting] = &[
    deployment(
        "node",
        Form::List("[NAME=]URL"),
        |mut builder, text, values| {
            builder.settings.nodes_are_set = values.origin("node") != Some(Origin::Typed);
            Ok(nodes(text)?.into_iter().fold(builder, ClientBuilder::node))
        },
        "A node, repeatable, or QUORLOCK_NODES, or a file: redis://, rediss://, valkey://, valkeys:// or redis+unix://, \
         with `[user][:password@]host[:port][/db]`; NAME= before it names it. With one replica: `?replicas=1`. Behind \
         Sentinel: `redis+sentinel://HOST[:port]/MASTER?replicas=1`, and `&sentinel=HOST[:port]` for each further \
         Sentinel. Other users can see it with ps, so put passwords into QUORLOCK_NODES (comma separated), \
         QUORLOCK_PASSWORD or --password-file. Without --node, QUORLOCK_NODES is used, then the file's nodes",
    ),
    Setting {
        class: Class::Deployment,
        place: Place::NotInFile,
        ..call(
            "config",
            Form::File,
            "Settings from this TOML file: nodes = [\"…\"], and most options by their long names\n\n\
             Without it, the first of these that exists: $XDG_CONFIG_HOME/quorlock/config.toml (by default \
             ~/.config/quorlock/config.toml), /etc/quorlock/config.toml. /dev/null stands for no file",
        )
    },
    deployment(
        "quorum",
        Form::Number,
        |builder, text, _| Ok(builder.quorum(number(text)?)),
        "How many nodes must grant [default: the majority]",
    ),
    deployment(
        "key-prefix",
        Form::Text("TEXT"),
        |builder, text, _| Ok(builder.key_prefix(text)),
        "A prefix of every KEY on the nodes",
    ),
    deployment(
        "max-ttl",
        Form::Time,
        |builder, text, _| {
            let max_ttl = duration(text)?;
            if max_ttl < TTL_MIN {
                // Without this check, `build` would blame the ttl, which is not a setting here.
                let shown = exactly(max_ttl);
                return Err(format!("max-ttl ({shown}) must be at least {TTL_MIN:?}").into());
            }
            let options = LockOptions::new().ttl(default_ttl(Some(max_ttl)));
            Ok(builder.max_ttl(max_ttl).options(options))
        },
        "The longest TTL that any client of these nodes uses [default: 30s]",
    ),
    deployment(
        "restart-guard",
        Form::OneOf("MODE", &["strict", "observe", "off"]),
        |builder, text, _| Ok(builder.restart_guard(restart_guard(text)?)),
        "What to do about nodes that were restarted, lost data, or are no independent masters. It protects a lock only \
         if all its clients are strict [default: strict]\n\n\
         strict: votes of nodes that are not trusted do not count. observe: their votes count, and the nodes are \
         reported. off: nodes are not checked",
    ),
    deployment(
        "durable",
        Form::List("NAME"),
        |builder, text, _| Ok(builder.durable_nodes(text.split(',').map(str::trim))),
        "Names of nodes that lose nothing when they stop, and so need not wait after a restart. They run with \
         appendonly yes and appendfsync always, and did so before they last stopped. Repeatable, or comma separated",
    ),
    deployment(
        "node-timeout",
        Form::Time,
        |builder, text, _| Ok(builder.options(LockOptions::new().node_timeout(duration(text)?))),
        "How long to wait for a node's answer, at most a quarter of the TTL [default: 5% of TTL, at most 50ms, but at \
         least four round trips to the node, and at most a fifth of TTL]",
    ),
    deployment(
        "connect-timeout",
        Form::Time,
        |builder, text, _| Ok(builder.connect_timeout(duration(text)?)),
        "How long connecting to a node may take [default: 5s]",
    ),
    deployment(
        "yield-to-pollers",
        Form::Bool,
        |builder, text, _| Ok(builder.options(LockOptions::new().yield_to_pollers(boolean(text)?))),
        "Whether the wait leaves gaps for clients that poll, while other libraries used the lock in the last ten \
         seconds [default: true]",
    ),
    deployment(
        "username",
        Form::Text("NAME"),
        |builder, text, _| Ok(builder.username(text)),
        "The ACL user, for all nodes",
    ),
    Setting {
        place: Place::OnlyVariable,
        ..deployment(
            "password",
            Form::Text("TEXT"),
            |builder, text, _| Ok(builder.password(text)),
            "the password itself",
        )
    },
    deployment(
        "password-file",
        Form::File,
        |mut builder, text, values| {
            let is_in_file = values.origin("password-file") == Some(Origin::File);
            if is_in_file && values.of("password").is_some() {
                return Ok(builder);
            }
            let file = PasswordFile::new(text.into());
            file.read()?;
            builder.settings.credentials = Some(Provider::File(Arc::new(file)));
            Ok(builder)
        },
        "A file with the password for the nodes whose URL has none; QUORLOCK_PASSWORD holds one too. Like the files of \
         TLS, it is read again for each connection, so it may change at any time",
    ),
    deployment(
        "tls-ca",
        Form::File,
        |builder, text, _| {
            let file = readable(text, "the certificate authority")?;
            Ok(with_tls(builder, |tls| tls.ca_of(file)))
        },
        "Trust this certificate authority (PEM) instead of the system's",
    ),
    deployment(
        "tls-cert",
        Form::File,
        |mut builder, text, values| {
            values.of("tls-key").ok_or(TOGETHER)?;
            builder.settings.tls_cert = Some(readable(text, "the certificate")?);
            Ok(builder)
        },
        "Show this certificate (PEM) to the nodes",
    ),
    deployment(
        "tls-key",
        Form::File,
        |mut builder, text, _| {
            let cert = builder.settings.tls_cert.take().ok_or(TOGETHER)?;
            let key = readable(text, "the certificate's key")?;
            Ok(with_tls(builder, |tls| tls.client_of(cert, key)))
        },
        "The key (PEM) of --tls-cert",
    ),
    deployment(
        "tls-server-name",
        Form::Text("NAME"),
        |builder, text, _| Ok(builder.tls_server_name(text)),
        "The name that the nodes' certificates must have, in place of the URLs' hosts: for servers that are reached by \
         addresses or through tunnels. For one node: ?tls-server-name=NAME in its URL",
    ),
    call(
        "ttl",
        Form::Time,
        "How long nodes keep the lock without an extension; with run or a keeper at least 500ms. A crashed holder \
         blocks others for this time [default: 10s, or --max-ttl if that is shorter]",
    ),
    call(
        "wait",
        Form::Text("TIME"),
        "How long to try: a time, 0s for a single attempt, or \"forever\" [default: 60s]",
    ),
    call(
        "max-hold",
        Form::Time,
        "The longest time to hold the lock. It is not extended beyond this, ends at most one TTL before it, and then \
         counts as lost [default: 24h]",
    ),
    call(
        "min-hold",
        Form::Time,
        "Hold the lock for at least this time. CMD may end sooner: for jobs that several machines start \"at the same \
         time\". The key is then left to expire, so the lock may stay held for up to one TTL more",
    ),
    call(
        "kill-after",
        Form::Time,
        "Send SIGTERM this time before the lock ends: at least as early as SIGKILL, and less than a third of the TTL \
         [default: TTL/5]. SIGKILL follows max(5% of TTL, 50ms) before the lock ends",
    ),
    call(
        "if-held",
        Form::Text("WHAT"),
        "Fail, skip or wait if it is held: fail with exit code 75 or skip CMD and exit 0, both after --wait; or wait for \
         at most --wait until its holders are done, and then exit 0 without running CMD",
    ),
    call(
        "held-exit-code",
        Form::Number,
        "Exit with this code instead of 75 if others hold the lock",
    ),
    call(
        "label",
        Form::Text("TEXT"),
        "Describe this holder to those who ask who holds the lock [default: the command's name]",
    ),
    call(
        "fenced",
        Form::Bool,
        "Ask for a fencing token: a number that is larger than that of every earlier holder. The resource that the \
         holder writes to can then refuse holders that have lost the lock. Either all users of KEY ask for one, or none",
    ),
    call(
        "pass-nodes",
        Form::Bool,
        "Leave the nodes' settings in CMD's environment: QUORLOCK_NODES, QUORLOCK_PASSWORD, QUORLOCK_CONFIG and all \
         other variables of the section \"Nodes\"",
    ),
    Setting {
        place: Place::OnlyVariable,
        ..call("lease", Form::Text("LEASE"), "LEASE of `extend` and `release`")
    },
    not_in_file(
        "shared",
        Form::Bool,
        "Share the lock with others that use --shared; it excludes all that do not. A command without --shared that \
         waits is let in before those with it that come later",
    ),
    not_in_file(
        "status-fd",
        Form::Number,
        "Write one JSON object per event to this open file descriptor: waiting, acquired, extended, lost, released, each \
         with its fields. Open a file that others write to as well with >>",
    ),
    not_in_file("json", Form::Bool, "Print JSON instead of text"),
    not_in_file("quiet", Form::Bool, "Print errors only"),
];

const TOGETHER: &str = "tls-cert and tls-key go together";

/// A setting of the clients of some nodes.
const fn deployment(name: &'static str, form: Form, set: Set, help: &'static str) -> Setting {
    Setting { class: Class::Deployment, set: Some(set), ..call(name, form, help) }
}

/// A setting of one call of the command line.
const fn call(name: &'static str, form: Form, help: &'static str) -> Setting {
    Setting { name, class: Class::Call, form, place: Place::Anywhere, help, set: None }
}

const fn not_in_file(name: &'static str, form: Form, help: &'static str) -> Setting {
    Setting { place: Place::NotInFile, ..call(name, form, help) }
}

fn with_tls(mut builder: ClientBuilder, change: impl FnOnce(Tls) -> Tls) -> ClientBuilder {
    let tls = builder.settings.tls.take().unwrap_or_default();
    builder.tls(change(tls))
}

/// A file that can be read now.
fn readable(path: &str, what: &str) -> Result<SecretFile, Reason> {
    let file = SecretFile::new(path.into());
    let reason = |error| Reason::new(format!("{what} in {path}: {error}"), error);
    file.read().map_err(reason)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use super::*;
    use crate::builder::Settings;
    use crate::settings::Values;

    fn insert(values: &mut Values, name: &str, text: OsString) {
        let setting = Setting::of(name).unwrap();
        values.insert(name, vec![text], Origin::Variable, setting.variable());
    }

    /// All that the builder has. Without `..`, so a new field must be listed here.
    fn shown(builder: ClientBuilder) -> String {
        let Settings {
            nodes,
            nodes_are_set,
            memory_nodes: _,
            quorum,
            prefix,
            options,
            times,
            tls,
            tls_cert: _,
            tls_server_name,
            username,
            password,
            credentials,
            on_warning: _,
            clock,
            own_thread,
            trust,
        } = builder.settings;
        let secrets = (username, password, credentials.is_some());
        let rest = (tls, tls_server_name, clock, own_thread, trust);
        format!(
            "{nodes:?} {nodes_are_set} {quorum:?} {prefix} {options:?} {times:?} {secrets:?} {rest:?}"
        )
    }

    #[test]
    fn each_setting_changes_the_client() {
        let folder = tempfile::tempdir().unwrap();
        let text = |setting: &Setting| match setting.form {
            Form::Bool => "no".into(),
            Form::Time => "700ms".into(),
            Form::Number => "3".into(),
            Form::OneOf(_, texts) => texts[texts.len() - 1].into(),
            Form::Text(_) | Form::List(_) => "redis".into(),
            Form::File => {
                let path = folder.path().join(setting.name);
                fs::write(&path, setting.name).unwrap();
                path.into_os_string()
            }
        };
        let without = |omitted: &str| {
            let mut values = Values::default();
            for setting in SETTINGS.iter().filter(|setting| setting.name != omitted) {
                insert(&mut values, setting.name, text(setting));
            }
            values.builder().map(shown).map_err(|(_, reason)| reason.to_string())
        };
        let all = without("");
        assert!(all.is_ok(), "{all:?}");
        for setting in SETTINGS.iter().filter(|setting| setting.class == Class::Deployment) {
            let is_same = without(setting.name) == all;
            assert_eq!(is_same, setting.set.is_none(), "{} has no effect", setting.name);
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn files_and_names_of_certificates_reach_the_node() {
        let authority = quorlock_servers::certificates::Authority::new();
        let folder = authority.folder();
        let file = |name: &str| folder.join(name).into_os_string();
        let mut values = Values::default();
        for (name, text) in [
            ("node", "rediss://h,rediss://g?tls-server-name=g.internal".into()),
            ("tls-ca", file("ca.pem")),
            ("tls-cert", file("node.pem")),
            ("tls-key", file("node.key")),
            ("tls-server-name", "h.internal".into()),
        ] {
            insert(&mut values, name, text);
        }
        let builder = values.builder().unwrap();
        let servers = crate::builder::Topology::of(&builder).unwrap().servers;
        for (server, name) in servers.iter().zip(["h", "g"]) {
            let line = server.redis_cli().line("PING");
            let folder = folder.display();
            let files = format!(
                "--cacert {folder}/ca.pem --cert {folder}/node.pem --key {folder}/node.key"
            );
            assert!(line.contains(&format!("--tls --sni {name}.internal {files} PING")), "{line}");
        }
    }
}
