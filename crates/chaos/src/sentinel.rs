//! `quorlock-chaos sentinel`: failovers of a real Sentinel deployment while workers hold locks.
//!
//! Two servers are master and replica, three Sentinels watch them, and all of them reach each other through proxies.
//! Some workers find the master through Sentinel. Each server also has a worker that is connected to this server alone,
//! like a client on the master's side of a partition.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use quorlock::settings::duration;
use quorlock_servers::proxy::{Direction, Traffic};
use quorlock_servers::{Listen, Nodes, Reply, Server, ServerOptions, find_named};
use quorlock_sim::time::{MS, SECOND, Time};

use crate::clock::{nanos, now, seconds, wait_for};
use crate::faults::{Act, Kind};
use crate::holds::Hold;
use crate::ledger::{Shared, lock};
use crate::nemesis::Nemesis;
use crate::oracles::WRITES;
use crate::plan::{Abilities, RoundPlan, SENTINEL_FAULTS};
use crate::protocol::Job;
use crate::round::{self, Programs, Subject};
use crate::servers::{Servers, ask, text};
use crate::totals::{CHECKED, WRONG};
use crate::workers::Workers;
use crate::{report, said};

/// The number of workers that find the master through Sentinel, in addition to the one per server.
const WORKERS: usize = 4;

/// The run fails if a failover takes longer than this time plus twice the quarantine.
const PATIENCE: Time = 90 * SECOND;

/// Names of counts.
const OF_OLD_MASTER: &str = "locks that an old master gave after the promotion of its replica";
const FAILOVERS_CHECKED: &str = "failovers after which the old master's locks were counted";

/// Fails over a master with one replica behind three Sentinels, while processes hold locks
///
/// The master is stopped during its failover and continued afterwards, killed and started again without data, cut off,
/// or demoted by SENTINEL FAILOVER, in turn. Exit code 1 if an oracle of library rounds finds a violation, such as a
/// lost update, or if a client of an old master got a lock after the promotion of its replica
#[derive(Debug, clap::Args)]
pub(crate) struct SentinelArgs {
    /// The number of failovers
    #[arg(long, value_name = "N", default_value_t = 20)]
    failovers: usize,

    /// The ttl of the locks, and the longest of any client
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    max_ttl: Duration,

    /// The server to run: a path, or a program on the PATH [default: as in tests]
    #[arg(long, value_name = "SERVER")]
    server: Option<String>,

    /// Let workers that know only one server count its vote without its replica. Exit code 0 if a violation is found
    #[arg(long)]
    negative: bool,
}

pub(crate) fn main(args: &SentinelArgs) -> Result<ExitCode, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let server = find_named(args.server.as_deref(), workspace)?;
    println!("{} failovers of {server}, max_ttl {:?}", args.failovers, args.max_ttl);
    let max_ttl = Time::try_from(args.max_ttl.as_nanos()).map_err(said)?;
    let plan = RoundPlan::sentinel(args.failovers, max_ttl);
    let plan = RoundPlan { acknowledged: !args.negative, ..plan };
    let programs = Programs {
        server,
        shim: None,
        quorlock: PathBuf::new(),
        can: Abilities::default(),
        interrupt: Arc::default(),
    };
    let outcome = round::run(&plan, &programs)?;
    report::tell(&plan, &outcome, false);
    let totals = &outcome.totals;
    println!("\n{totals}");
    let is_wrong = totals.violations > 0;
    let is_complete = totals.get(CHECKED, FAILOVERS_CHECKED) >= args.failovers as u64
        && totals.get(CHECKED, WRITES) > 0;
    println!(
        "{}",
        match (is_wrong, is_complete) {
            (true, _) => "VIOLATION",
            (false, true) => "no violation",
            (false, false) => "incomplete",
        }
    );
    Ok(match is_wrong == args.negative && (is_complete || is_wrong) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

pub(crate) struct Sentinel {
    sentinels: Nodes,
    /// The ports of the proxies of both servers.
    ports: [String; 2],
    workers: Workers,
    ledger: Shared,
    wanted: usize,
    patience: Time,
    failovers: Vec<Failover>,
}

/// One failover that has ended.
struct Failover {
    fault: Kind,
    old: usize,
    promoted_at: Time,
    pause: Time,
    /// False if the Sentinels failed over once more without a fault. That time is unknown, so no check is possible.
    is_checked: bool,
}

impl Sentinel {
    pub(crate) fn start(
        plan: &RoundPlan,
        nemesis: &Nemesis,
        ledger: &Shared,
        programs: &Programs,
    ) -> Result<Self, String> {
        let args = vec!["--sentinel".to_owned()];
        let options = ServerOptions { args, listen: Listen::Tcp, ..ServerOptions::default() };
        let port = |place: usize| {
            let url = nemesis.proxies[0][place].url();
            url.rsplit(':').next().unwrap_or_default().to_owned()
        };
        let mut sentinel = Self {
            sentinels: Nodes::start(&programs.server, 3, options).map_err(said)?,
            ports: [0, 1].map(port),
            workers: Workers::start(Vec::new(), 0, ledger)?,
            ledger: ledger.clone(),
            wanted: plan.events.len() / 2,
            patience: PATIENCE + 2 * plan.quarantine(),
            failovers: Vec::new(),
        };
        let servers = &nemesis.servers;
        sentinel.announce(0, servers)?;
        sentinel.announce(1, servers)?;
        let port = &sentinel.ports[0];
        servers.command(1, &["REPLICAOF", "127.0.0.1", port])?;
        for one in &sentinel.sentinels {
            ask(one, &["SENTINEL", "MONITOR", "locks", "127.0.0.1", port, "2"])?;
            for (option, ms) in [("down-after-milliseconds", "1000"), ("failover-timeout", "5000")]
            {
                ask(one, &["SENTINEL", "SET", "locks", option, ms])?;
            }
        }
        sentinel.ready(servers)?;
        let addresses: Vec<_> = sentinel.sentinels.iter().map(Server::address).collect();
        let (first, others) = (&addresses[0], addresses[1..].join("&sentinel="));
        let url = format!("locks=redis+sentinel://{first}/locks?replicas=1&sentinel={others}");
        let job = |worker: usize| match worker.checked_sub(WORKERS) {
            None => Job::new(plan, worker, vec![url.clone()]),
            Some(only) => {
                let (server, replicas) = (servers.node(only).url(), u8::from(plan.acknowledged));
                let url = format!("locks={server}?replicas={replicas}");
                Job { waits: false, ..Job::new(plan, worker, vec![url]) }
            }
        };
        let jobs = (0..WORKERS + plan.nodes).map(job).collect();
        sentinel.workers = Workers::start(jobs, WORKERS, ledger)?;
        Ok(sentinel)
    }

    /// Makes the server announce the address of its proxy to the other servers. A restart undoes this setting.
    fn announce(&self, place: usize, servers: &Servers) -> Result<(), String> {
        servers.command(place, &["CONFIG", "SET", "replica-announce-ip", "127.0.0.1"])?;
        let port = &self.ports[place];
        servers.command(place, &["CONFIG", "SET", "replica-announce-port", port])
    }

    /// Waits until each Sentinel can fail over. Returns the index of the master.
    fn ready(&self, servers: &Servers) -> Result<usize, String> {
        self.until("the Sentinels know master and replica", || {
            let masters = self.sentinels.iter().map(|sentinel| {
                let [master, replica] =
                    ["MASTER", "REPLICAS"].map(|of| ask(sentinel, &["SENTINEL", of, "locks"]));
                let (master, replica) = (master.ok()?, replica.ok()?);
                let Reply::Array(replicas) = &replica else { return None };
                let [replica] = &replicas[..] else { return None };
                let is_ready = value(&master, "flags")? == "master"
                    && value(&master, "num-other-sentinels")? == "2"
                    && value(replica, "flags")? == "slave"
                    && value(replica, "master-link-status")? == "ok";
                let port = value(&master, "port")?;
                self.ports.iter().position(|its| is_ready && *its == port)
            });
            let masters: Vec<_> = masters.collect();
            let master = masters[0].filter(|_| masters.iter().all(|it| *it == masters[0]))?;
            let has_role = |place, name| role(servers.node(place)) == name;
            (has_role(master, "master") && has_role(1 - master, "slave")).then_some(master)
        })
    }

    fn strike_master(&self, fault: Kind, old: usize, nemesis: &Nemesis) -> Result<(), String> {
        let (server, proxy) = (nemesis.servers.node(old), &nemesis.proxies[0][old]);
        match fault {
            Kind::MASTER_STOPS => server.pause().map_err(said),
            Kind::MASTER_KILLED => server.kill().map_err(said),
            Kind::MASTER_CUT_OFF => {
                proxy.set(Direction::ToServer, Traffic::Hold);
                proxy.set(Direction::ToClient, Traffic::Hold);
                Ok(())
            }
            _ => self.until("Sentinel begins the failover", || {
                ask(&self.sentinels[0], &["SENTINEL", "FAILOVER", "locks"]).ok().map(drop)
            }),
        }
    }

    fn heal_master(&self, fault: Kind, old: usize, nemesis: &Nemesis) -> Result<(), String> {
        let server = nemesis.servers.node(old);
        match fault {
            Kind::MASTER_STOPS => server.resume().map_err(said)?,
            Kind::MASTER_KILLED => {
                server.restart().map_err(said)?;
                self.announce(old, &nemesis.servers)?;
            }
            _ => nemesis.proxies[0][old].open(),
        }
        Ok(())
    }

    /// Waits for the first lock whose call began after `since`. Returns its time.
    fn granted_since(&self, since: Time) -> Result<Time, String> {
        self.until("a worker gets a lock", || {
            let ledger = lock(&self.ledger);
            let recent = ledger.holds().iter().rev().take_while(|hold| hold.from > since - SECOND);
            recent.filter(|hold| hold.asked > since).map(|hold| hold.from).min()
        })
    }

    fn until<T>(&self, what: &str, is_so: impl FnMut() -> Option<T>) -> Result<T, String> {
        let patience = seconds(self.patience);
        wait_for(now() + self.patience, is_so)
            .ok_or_else(|| format!("{patience} have passed, and it is still not so: {what}"))
    }

    fn checked(&self) -> usize {
        self.failovers.iter().filter(|failover| failover.is_checked).count()
    }

    fn print_pauses(&self) {
        println!("\n| fault | failovers | pause p50 | longest pause |\n|---|---|---|---|");
        for fault in SENTINEL_FAULTS.map(Some).into_iter().chain([None]) {
            let of = self.failovers.iter().filter(|it| fault.is_none_or(|fault| it.fault == fault));
            let mut pauses: Vec<Time> = of.map(|it| it.pause).collect();
            pauses.sort_unstable();
            if let [.., max] = pauses[..] {
                let p50 = seconds(pauses[(pauses.len() - 1) / 2]);
                let (name, count) = (fault.map_or("all", Kind::name), pauses.len());
                println!("| {name} | {count} | {p50} | {} |", seconds(max));
            }
        }
    }
}

impl Subject for Sentinel {
    /// Carries out one failover from its fault to the next lock. Does nothing if there were enough of them.
    fn strike(&mut self, act: &Act, _due: Time, nemesis: &Nemesis) -> Result<bool, String> {
        let Act::BySentinel(fault) = *act else { return Ok(false) };
        if self.checked() == self.wanted {
            return Ok(false);
        }
        let old = self.ready(&nemesis.servers)?;
        let new = nemesis.servers.node(1 - old);
        if let Some(last) = self.failovers.last_mut().filter(|last| last.old == old) {
            println!("the Sentinels have failed over by themselves");
            last.is_checked = false;
        }
        self.granted_since(now())?;
        let began = now();
        lock(&self.ledger).note(began, format!("-- {act}"));
        self.strike_master(fault, old, nemesis)?;
        self.until("the replica is promoted", || (role(new) == "master").then_some(()))?;
        let promoted_at = now();
        lock(&self.ledger).note(promoted_at, "-- the replica is promoted");
        // The pause varies, so that the old master sometimes comes back during the failover and sometimes after it.
        thread::sleep(nanos(700 * MS * (self.failovers.len() % 3) as Time));
        self.heal_master(fault, old, nemesis)?;
        let pause = self.granted_since(promoted_at)? - began;
        println!("{}: a pause of {}", fault.name(), seconds(pause));
        self.failovers.push(Failover { fault, old, promoted_at, pause, is_checked: true });
        Ok(true)
    }

    fn calm(&mut self) -> Result<(), String> {
        self.workers.calm()
    }

    fn stop(&mut self) -> Result<bool, String> {
        self.workers.stop()
    }

    /// Also checks that no client of an old master got a lock with a call that began after the promotion.
    fn judge(&mut self) -> Result<(), String> {
        self.workers.judge()?;
        self.print_pauses();
        let mut ledger = lock(&self.ledger);
        let ends = self.failovers.iter().skip(1).map(|next| next.promoted_at).chain([Time::MAX]);
        let spans = self.failovers.iter().zip(ends).filter(|(failover, _)| failover.is_checked);
        let of_old = spans.flat_map(|(failover, end)| {
            let is_of_old = move |hold: &&Hold| hold.caller.0 == WORKERS + failover.old;
            let span = failover.promoted_at..end;
            ledger.holds().iter().filter(is_of_old).filter(move |it| span.contains(&it.asked))
        });
        let of_old: Vec<_> = of_old
            .map(|hold| (hold.from, format!("{} gets a lock from an old master", hold.holder)))
            .collect();
        ledger.totals.count(WRONG, OF_OLD_MASTER, of_old.len() as u64);
        ledger.totals.count(CHECKED, FAILOVERS_CHECKED, self.checked() as u64);
        of_old.into_iter().for_each(|(at, what)| ledger.violated(at, what));
        Ok(())
    }
}

/// `master` or `slave`; empty if the server does not answer.
fn role(server: &Server) -> String {
    let Ok(Reply::Array(role)) = ask(server, &["ROLE"]) else { return String::new() };
    role.first().map(text).unwrap_or_default()
}

/// The value of a field in a reply of Sentinel.
fn value(reply: &Reply, field: &str) -> Option<String> {
    let Reply::Array(words) = reply else { return None };
    words.chunks_exact(2).find(|pair| text(&pair[0]) == field).map(|pair| text(&pair[1]))
}
