//! Every function of the library that returns a future, and the situations in which this future is dropped.
//! `public.rs` checks that no function is missing.

use std::fmt;
use std::future::IntoFuture as _;
use std::rc::Rc;
use std::time::Duration;

use quorlock::{AcquireError, DetachError, Guard, Lease, LockOptions, Mode};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::polls::Call;
use crate::scene::{RESOURCE, Scene, TTL, VALUE, WAIT};

pub(crate) struct Case {
    pub(crate) function: &'static str,
    situation: &'static str,
    /// Creates the situation before the fault begins, while all nodes are healthy.
    pub(crate) prepare: fn(Rc<Scene>) -> Call,
    pub(crate) call: fn(Rc<Scene>) -> Call,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.function, self.situation)
    }
}

/// The time for which other callers hold the lock that the future asks for.
const HELD_FOR: Duration = Duration::from_millis(70);

pub(crate) const ALL: &[Case] = &[
    Case {
        function: "Client::acquire",
        situation: "of a free lock",
        prepare: nothing,
        call: |scene| keep(scene.clone(), scene.acquire().into_future()),
    },
    Case {
        function: "Client::acquire",
        situation: "of several keys",
        prepare: nothing,
        call: |scene| {
            let call = scene
                .client()
                .acquire([RESOURCE, "another"])
                .options(LockOptions::new().ttl(TTL).wait(WAIT));
            keep(scene.clone(), call.into_future())
        },
    },
    Case {
        function: "Client::acquire_shared",
        situation: "of a free lock",
        prepare: nothing,
        call: |scene| keep(scene.clone(), scene.client().acquire_shared(RESOURCE).into_future()),
    },
    Case {
        function: "Client::acquire",
        situation: "of what another client reads",
        prepare: |scene| Box::pin(async move { scene.read_by_another_client(HELD_FOR).await }),
        call: |scene| keep(scene.clone(), scene.acquire().into_future()),
    },
    Case {
        function: "Client::acquire",
        situation: "that tells of its progress",
        prepare: nothing,
        call: |scene| {
            let told = mpsc::channel(1).0;
            keep(scene.clone(), scene.acquire().progress(told).into_future())
        },
    },
    Case {
        function: "Client::acquire",
        situation: "by the last handle",
        prepare: nothing,
        call: |scene| {
            let call = scene.acquire().into_future();
            scene.forget_client();
            keep(scene, call)
        },
    },
    Case {
        function: "Client::acquire",
        situation: "between other callers of the client",
        prepare: |scene| Box::pin(async move { scene.held_by_other(HELD_FOR).await }),
        call: |scene| {
            let call = scene.acquire().into_future();
            scene.hold_in_background(scene.acquire(), HELD_FOR);
            keep(scene, call)
        },
    },
    Case {
        function: "Client::acquire",
        situation: "of what another client holds",
        prepare: |scene| Box::pin(async move { scene.held_by_another_client(HELD_FOR).await }),
        call: |scene| keep(scene.clone(), scene.acquire().into_future()),
    },
    Case {
        function: "Acquire::hold",
        situation: "of a free lock",
        prepare: nothing,
        call: |scene| {
            Box::pin(async move {
                // The result does not matter, because some faults end the lock and so the work.
                let _ = scene.client().acquire(RESOURCE).hold(work).await;
            })
        },
    },
    Case {
        function: "Client::inspect",
        situation: "of a lock of one's own",
        prepare: held,
        call: |scene| {
            Box::pin(async move { drop(scene.client().inspect(RESOURCE).await.unwrap()) })
        },
    },
    Case {
        function: "Client::shutdown",
        situation: "with a lock and a waiting caller",
        prepare: |scene| {
            Box::pin(async move {
                held(scene.clone()).await;
                scene.hold_in_background(scene.acquire(), HELD_FOR);
            })
        },
        call: |scene| {
            scene.will_be_shut_down();
            Box::pin(async move {
                // The result does not matter: releases that failed and are sent again may take longer than `WAIT`.
                let _ = scene.client().shutdown(WAIT).await;
            })
        },
    },
    Case {
        function: "Client::try_acquire",
        situation: "of a free lock",
        prepare: nothing,
        call: |scene| keep(scene.clone(), scene.client().try_acquire(RESOURCE)),
    },
    Case {
        function: "Guard::changed",
        situation: "of a lock that is extended",
        prepare: |scene| {
            Box::pin(async move {
                held(scene).await;
                // Votes that arrive after the quorum also notify `changed`. They must arrive before the call.
                sleep(TTL / 100).await;
            })
        },
        call: |scene| Box::pin(async move { scene.guard().changed().await }),
    },
    Case {
        function: "HealthChanges::next",
        situation: "of a lock that is given back",
        prepare: held,
        call: |scene| {
            let guard = scene.take_guard();
            let mut changes = guard.health_changes();
            drop(guard);
            Box::pin(async move { while changes.next().await.is_some() {} })
        },
    },
    Case {
        function: "Guard::extend",
        situation: "after a downgrade",
        prepare: held,
        call: |scene| {
            Box::pin(async move {
                let guard = scene.take_guard().downgrade();
                let is_writer = guard.is_valid() && guard.mode() == Mode::Exclusive;
                assert!(!is_writer, "S30: a reader for its holder before any node knows");
                scene.keep(guard);
                let _ = scene.guard().extend().await;
            })
        },
    },
    Case {
        function: "Guard::extend",
        situation: "once",
        prepare: held,
        call: |scene| {
            Box::pin(async move {
                let _ = scene.guard().extend().await;
            })
        },
    },
    Case {
        function: "Guard::extend",
        situation: "while another extension is under way",
        prepare: held,
        call: |scene| {
            let guard = scene.guard();
            scene.other(async move { drop(guard.extend().await) });
            Box::pin(async move {
                let _ = scene.guard().extend().await;
            })
        },
    },
    Case {
        function: "Guard::lost",
        situation: "of a lock that is not extended",
        prepare: |scene| {
            Box::pin(async move {
                scene.keep(
                    scene.acquire().options(LockOptions::new().auto_extend(false)).await.unwrap(),
                );
            })
        },
        call: |scene| {
            Box::pin(async move {
                let guard = scene.guard();
                assert_eq!(Some(guard.lost().await), guard.loss_cause());
            })
        },
    },
    Case {
        function: "Client::acquire_fenced",
        situation: "of a free lock",
        prepare: nothing,
        call: |scene| {
            let call = scene.client().acquire_fenced(RESOURCE);
            keep(scene.clone(), async { call.await.map(Guard::from) })
        },
    },
    Case {
        function: "FencedGuard::release",
        situation: "of a lock without other callers",
        prepare: nothing,
        call: |scene| {
            let call = scene.client().acquire_fenced(RESOURCE);
            Box::pin(async move {
                if let Ok(guard) = call.await {
                    drop(guard.release().await);
                }
            })
        },
    },
    Case {
        function: "Guard::release",
        situation: "of a lock without other callers",
        prepare: held,
        call: |scene| release(scene.take_guard()),
    },
    Case {
        function: "Guard::release",
        situation: "of a lock that is handed over",
        prepare: |scene| {
            Box::pin(async move {
                held(scene.clone()).await;
                scene.hold_in_background(scene.acquire(), HELD_FOR);
                sleep(TTL / 100).await;
            })
        },
        call: |scene| release(scene.take_guard()),
    },
    Case {
        function: "Guard::detach",
        situation: "of a lock that is held",
        prepare: held,
        call: |scene| {
            let detaching = scene.take_guard().detach();
            keep_lease(scene, detaching)
        },
    },
    Case {
        function: "Guard::detach",
        situation: "of a lock that another caller of the client wants",
        prepare: |scene| {
            Box::pin(async move {
                held(scene.clone()).await;
                scene.hold_in_background(scene.acquire(), HELD_FOR);
                sleep(TTL / 100).await;
            })
        },
        call: |scene| {
            let detaching = scene.take_guard().detach();
            keep_lease(scene, detaching)
        },
    },
    Case {
        function: "FencedGuard::detach",
        situation: "after the grant",
        prepare: nothing,
        call: |scene| {
            let call = scene.client().acquire_fenced(RESOURCE);
            Box::pin(async move {
                if let Ok(guard) = call.await {
                    keep_lease(scene, guard.detach()).await;
                }
            })
        },
    },
    Case {
        function: "Client::attach",
        situation: "of a writer's lease",
        prepare: detached,
        call: attach,
    },
    Case {
        function: "Client::attach",
        situation: "of a reader's lease",
        prepare: |scene| {
            Box::pin(async move {
                let guard = scene.client().acquire_shared(RESOURCE).await.unwrap();
                scene.keep_lease(guard.detach().await.unwrap());
            })
        },
        call: attach,
    },
    Case {
        function: "Client::attach",
        situation: "of a lease that another client attaches at the same time",
        prepare: detached,
        call: |scene| {
            scene.hold_in_background(scene.another_client().attach(&scene.lease()), HELD_FOR);
            attach(scene)
        },
    },
    Case {
        function: "Client::attach_fenced",
        situation: "of a lease",
        prepare: |scene| {
            Box::pin(async move {
                let guard = scene.client().acquire_fenced(RESOURCE).await.unwrap();
                scene.keep_lease(guard.detach().await.unwrap());
            })
        },
        call: |scene| {
            let call = scene.client().attach_fenced(&scene.lease());
            let call = call.options(LockOptions::new().wait(WAIT));
            keep(scene, async { call.await.map(Guard::from) })
        },
    },
    Case {
        function: "Client::extend_lease",
        situation: "once",
        prepare: detached,
        call: |scene| {
            Box::pin(async move { drop(scene.client().extend_lease(&scene.lease()).await) })
        },
    },
    Case {
        function: "Client::release_lease",
        situation: "once",
        prepare: detached,
        call: |scene| {
            Box::pin(async move { drop(scene.client().release_lease(&scene.lease()).await) })
        },
    },
    Case { function: "Client::take", situation: "of a free lock", prepare: nothing, call: take },
    Case {
        function: "Client::take",
        situation: "of what another client holds with an equal value",
        prepare: |scene| {
            Box::pin(async move {
                let other = scene.another_client();
                scene.keep_rival(other.take(RESOURCE, VALUE, TTL).await.unwrap());
            })
        },
        call: take,
    },
    Case {
        function: "Taken::extend",
        situation: "once",
        prepare: taken,
        call: |scene| Box::pin(async move { drop(scene.taken().extend().await) }),
    },
    Case {
        function: "Taken::release",
        situation: "of a lock that is held",
        prepare: taken,
        call: |scene| {
            let releasing = scene.take_taken().release();
            Box::pin(async move { drop(releasing.await) })
        },
    },
    Case {
        function: "Taken::detach",
        situation: "of a lock that is held",
        prepare: taken,
        call: |scene| {
            let detaching = scene.take_taken().detach();
            keep_lease(scene, detaching)
        },
    },
    Case {
        function: "Client::extend_value",
        situation: "of a lock that is held",
        prepare: taken,
        call: |scene| {
            Box::pin(async move { drop(scene.client().extend_value(RESOURCE, VALUE, TTL).await) })
        },
    },
    Case {
        function: "Client::release_value",
        situation: "of a lock that is held",
        prepare: taken,
        call: |scene| {
            Box::pin(async move { drop(scene.client().release_value(RESOURCE, VALUE).await) })
        },
    },
    Case {
        function: "Client::query",
        situation: "of a lock that is held",
        prepare: taken,
        call: |scene| Box::pin(async move { drop(scene.client().query(RESOURCE).await) }),
    },
];

/// The names of the functions, sorted and without duplicates.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = ALL.iter().map(|case| case.function).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn nothing(_: Rc<Scene>) -> Call {
    Box::pin(async {})
}

fn held(scene: Rc<Scene>) -> Call {
    Box::pin(async move { scene.keep(scene.acquire().await.unwrap()) })
}

fn detached(scene: Rc<Scene>) -> Call {
    Box::pin(async move {
        let lease = scene.acquire().await.unwrap().detach().await.unwrap();
        scene.keep_lease(lease);
    })
}

/// Awaits the future, and keeps its lease in the scene until `finish` releases it.
fn keep_lease(
    scene: Rc<Scene>,
    detaching: impl Future<Output = Result<Lease, DetachError>> + 'static,
) -> Call {
    Box::pin(async move {
        if let Ok(lease) = detaching.await {
            scene.keep_lease(lease);
        }
    })
}

fn attach(scene: Rc<Scene>) -> Call {
    let call = scene.client().attach(&scene.lease()).options(LockOptions::new().wait(WAIT));
    keep(scene, call.into_future())
}

fn taken(scene: Rc<Scene>) -> Call {
    Box::pin(async move {
        scene.keep_taken(scene.client().take(RESOURCE, VALUE, TTL).await.unwrap());
    })
}

fn take(scene: Rc<Scene>) -> Call {
    let call = scene.client().take(RESOURCE, VALUE, TTL).options(LockOptions::new().wait(WAIT));
    Box::pin(async move {
        if let Ok(taken) = call.await {
            scene.keep_taken(taken);
        }
    })
}

/// Awaits the call, and keeps its guard in the scene until `finish` drops it.
fn keep(
    scene: Rc<Scene>,
    call: impl Future<Output = Result<Guard, AcquireError>> + 'static,
) -> Call {
    Box::pin(async move {
        if let Ok(guard) = call.await {
            scene.keep(guard);
        }
    })
}

/// `Guard::release` queues the release before the first poll, so this call must not move into the async block.
fn release(guard: Guard) -> Call {
    let releasing = guard.release();
    Box::pin(async move { drop(releasing.await) })
}

/// Work that checks its guard several times. A lost lock must stay lost.
async fn work(guard: &Guard) {
    let mut lost = false;
    for _ in 0..5 {
        assert!(!(lost && guard.is_valid()), "S13: valid again");
        lost = !guard.is_valid();
        sleep(TTL / 100).await;
    }
}
