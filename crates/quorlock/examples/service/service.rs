//! The service: routes, the background job, and the order of their shutdown.

use std::error::Error;
use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use quorlock::{AcquireError, Client, FencedGuard, HoldError, LockOptions};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::ledger::{Ledger, Overtaken};

/// The longest time that a request waits for a lock.
const PATIENCE: Duration = Duration::from_secs(2);

/// The state that all requests share. There is one client per process, and its clones share the connections.
struct App {
    client: Client,
    ledger: Arc<Ledger>,
}

/// Serves until `stop` is ready. Then the listener closes, requests in flight are answered, the job ends, and the
/// client sends again the releases that failed.
pub(crate) async fn serve(
    listener: TcpListener,
    client: Client,
    ledger: Arc<Ledger>,
    closing_interval: Duration,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Box<dyn Error>> {
    let app = Arc::new(App { client, ledger });
    let (stopping, stopped) = watch::channel(false);
    let job = tokio::spawn(close_books(app.clone(), closing_interval, stopped));
    let router = Router::new()
        .route("/accounts/{id}", get(balance))
        .route("/accounts/{id}/deposits/{amount}", post(deposit))
        .route("/health", get(health))
        .with_state(app.clone());
    let stop = async move {
        stop.await;
        stopping.send_replace(true);
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    job.await?;
    app.client.shutdown(Duration::from_secs(2)).await?;
    Ok(())
}

/// The errors of work under a lock: errors of the lock, and errors of the work.
///
/// `hold` returns a `Result<Result<T, E>, HoldError>` if the work is fallible. With a conversion from both errors,
/// one `??` is enough.
#[derive(Debug)]
enum Refusal {
    Lock(HoldError),
    Ledger(Overtaken),
}

impl From<HoldError> for Refusal {
    fn from(error: HoldError) -> Self {
        Self::Lock(error)
    }
}

impl From<Overtaken> for Refusal {
    fn from(error: Overtaken) -> Self {
        Self::Ledger(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            // Another request holds the account for longer than this one waits.
            Self::Lock(HoldError::NotAcquired(AcquireError::Contended(_))) => {
                (StatusCode::CONFLICT, "the account is busy; try again\n").into_response()
            }
            // Too few nodes answer. The caller gets no details; they are logged.
            Self::Lock(HoldError::NotAcquired(error)) => {
                eprintln!("no lock: {error}");
                (StatusCode::SERVICE_UNAVAILABLE, "no lock can be had now\n").into_response()
            }
            // The work was stopped halfway, or the ledger has refused the write.
            Self::Lock(error) => {
                eprintln!("{error}");
                (StatusCode::SERVICE_UNAVAILABLE, "the lock was lost; look whether it was done\n")
                    .into_response()
            }
            Self::Ledger(Overtaken) => {
                (StatusCode::CONFLICT, "a later request was faster\n").into_response()
            }
        }
    }
}

/// Adds to an account: reads and writes under the account's lock. If the caller hangs up, axum drops the future, and
/// the client gives the lock back.
async fn deposit(
    State(app): State<Arc<App>>,
    Path((id, amount)): Path<(String, i64)>,
) -> Result<String, Refusal> {
    let row = format!("account/{id}");
    let call = app.client.acquire_fenced(&row).options(LockOptions::new().wait(PATIENCE));
    let balance = call.hold(async |guard| add(&app.ledger, &row, amount, guard).await).await??;
    Ok(format!("{balance}\n"))
}

async fn balance(State(app): State<Arc<App>>, Path(id): Path<String>) -> String {
    format!("{}\n", app.ledger.look(&format!("account/{id}")))
}

/// Adds the amount to the row. The ledger refuses this if it has seen a larger fencing token.
async fn add(
    ledger: &Ledger,
    row: &str,
    amount: i64,
    guard: &FencedGuard,
) -> Result<i64, Overtaken> {
    let fence = guard.fencing_token();
    let value = ledger.read(row, fence).await? + amount;
    ledger.write(row, fence, value).await?;
    Ok(value)
}

/// The background job: closes the books once per interval, on one of the machines that run this service.
async fn close_books(app: Arc<App>, interval: Duration, mut stopped: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(interval);
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => return,
            _ = ticks.tick() => {}
        }
        let call =
            app.client.acquire_fenced("books").options(LockOptions::new().wait(Duration::ZERO));
        let work = call.hold(async |guard| add(&app.ledger, "books", 1, guard).await);
        let done = tokio::select! {
            // This branch drops the work. The client then releases the lock.
            _ = stopped.wait_for(|stopped| *stopped) => return,
            done = work => done.map_err(Refusal::from).and_then(|done| Ok(done?)),
        };
        match done {
            Ok(closed) => println!("the books are closed for the {closed}. time"),
            // Another machine closes the books, so this one does nothing.
            Err(Refusal::Lock(HoldError::NotAcquired(AcquireError::Contended(_)))) => {}
            // The next tick tries to close the books again.
            Err(refusal) => eprintln!("the books are not closed: {refusal:?}"),
        }
    }
}

/// One line per node, from the client's statistics. The client sends no command for this.
async fn health(State(app): State<Arc<App>>) -> (StatusCode, String) {
    let stats = app.client.stats();
    let mut text = format!("locks held: {}\n", stats.locks_held);
    for node in &stats.nodes {
        let _ = writeln!(text, "node {}: {:?}, {}", node.name, node.state, node.trust_state);
    }
    let is_well = stats.nodes.iter().filter(|node| node.would_vote).count() >= stats.quorum;
    (if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}
